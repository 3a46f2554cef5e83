"""What one rank of the checkpoint benchmark does: ``python -m benchmarks.checkpoint_saves '{"what": …, "out": …}'``, under torch's own variables."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import everstep
from benchmarks.checkpoint_ranks import PHASE, Body, Ranks, median, multiplying, sleeping, stall
from everstep.checkpoint.fetching import Region
from everstep.checkpoint.tiers import of_environment
from everstep.checkpoint.torch_parts import dtype_of

_CALIBRATION = 5


class Steps:
    """Step numbers, none of them twice in this process."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def _checkpointer(**more: Any) -> everstep.Checkpointer:
    return everstep.Checkpointer(every=1, tiers=of_environment(), **more)


def first(ranks: Ranks) -> None:
    """The very first save of a process whose segments stand ready."""
    body = Body(ranks, ranks.told["mib"], ranks.told["count"])
    checkpointer = _checkpointer()
    began = time.perf_counter()
    checkpointer.reserve(body.unpaced, ranks.rank, ranks.world)
    ranks.notes["reserve_s"] = time.perf_counter() - began
    for _ in range(_CALIBRATION):
        ranks.timed("memcpy", body.memcpy)
    ranks.timed("first save", lambda: checkpointer.step(body.unpaced, 1))
    checkpointer.close()


def saves(ranks: Ranks) -> None:
    """Every way to save, in turn, ``rounds`` times. The first round of each is thrown away: it maps, and lets DCP build its plans."""
    body, steps = Body(ranks, ranks.told["mib"], ranks.told["count"]), Steps()
    own, paced = _checkpointer(), _checkpointer()
    own.reserve(body.unpaced, ranks.rank, ranks.world)
    for _ in range(_CALIBRATION):
        ranks.timed("memcpy", body.memcpy)
    seconds = PHASE * median(ranks.samples["memcpy"])
    compute = (multiplying if ranks.told.get("is_busy") else sleeping)(seconds)
    ranks.samples.clear()
    stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_async_staging=False, use_non_blocking_copy=False))
    for _ in range(1 + ranks.told["rounds"]):
        ranks.timed("memcpy", body.memcpy)
        _staged(ranks, body, own, steps)
        _overlapped(ranks, body, paced, steps, compute)
        _others(ranks, body, compute, stager)
    for samples in ranks.samples.values():
        del samples[0]


def _staged(ranks: Ranks, body: Body, own: everstep.Checkpointer, steps: Steps) -> None:
    ranks.timed("Checkpointer, staged", lambda: own.step(body.unpaced, steps.next()))
    own.close()
    ranks.timed("dcp.save with TieredWriter", lambda: dcp.save(body.sharded, storage_writer=everstep.TieredWriter(steps.next())))
    pending: list[Any] = []
    ranks.timed(
        "dcp.async_save with TieredWriter, staged",
        lambda: pending.append(dcp.async_save(body.sharded, storage_writer=everstep.TieredWriter(steps.next()))),
    )
    pending.pop().result()


def _overlapped(ranks: Ranks, body: Body, paced: everstep.Checkpointer, steps: Steps, compute: Callable[[], None]) -> None:
    def own() -> Callable[[], None]:
        paced.step(body.paced, steps.next())
        return body.optimizer.step

    stall(ranks, "Checkpointer, overlapped", compute, own, paced.close)
    pending: list[Any] = []

    def ours() -> Callable[[], None]:
        response = dcp.async_save(body.sharded, storage_writer=everstep.TieredWriter(steps.next(), overlap=True))
        pending.append(response.upload_completion)
        return response.staging_completion.result

    stall(ranks, "dcp.async_save with TieredWriter, overlapped", compute, ours, lambda: pending.pop().result())


def _others(ranks: Ranks, body: Body, compute: Callable[[], None], stager: DefaultStager) -> None:
    """PyTorch's own ways, to a folder on disk."""
    folder = Path(ranks.told["folder"]) / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    local = {str(number): one for number, one in enumerate(body.mine)}
    ranks.timed("torch.save", lambda: torch.save(local, folder / f"rank{ranks.rank}.pt"))
    ranks.timed("dcp.save", lambda: dcp.save(body.sharded, checkpoint_id=str(folder / "dcp")))
    pending: list[Any] = []
    at = str(folder / "async")

    def begin() -> Callable[[], None]:
        response = dcp.async_save(body.sharded, checkpoint_id=at, async_stager=stager)
        pending.append(response)
        return lambda: None

    stall(ranks, "dcp.async_save with DefaultStager", compute, begin, lambda: _done(pending.pop()))


def _done(response: Any) -> None:
    getattr(response, "upload_completion", response).result()


def planner(ranks: Ranks) -> None:
    """5,000 small tensors: what a save costs besides its bytes, from the second one on."""
    body, steps = Body(ranks, ranks.told["mib"], ranks.told["count"]), Steps()
    own = _checkpointer()
    own.reserve(body.unpaced, ranks.rank, ranks.world)
    plans = dcp.DefaultSavePlanner(enable_plan_caching=True)
    folder = Path(ranks.told["folder"]) / "planner"
    for _ in range(2 + ranks.told["rounds"]):
        ranks.timed("memcpy", body.memcpy)
        ranks.timed("Checkpointer", lambda: own.step(body.unpaced, steps.next()))
        own.close()
        ranks.timed(
            "dcp.save with TieredWriter", lambda: dcp.save(body.sharded, storage_writer=everstep.TieredWriter(steps.next()))
        )
        writer = everstep.TieredWriter(steps.next())
        ranks.timed(
            "dcp.save with TieredWriter, plans cached",
            lambda writer=writer: dcp.save(body.sharded, storage_writer=writer, planner=plans),
        )
        shutil.rmtree(folder, ignore_errors=True)
        ranks.timed("dcp.save", lambda: dcp.save(body.sharded, checkpoint_id=str(folder)))
    for samples in ranks.samples.values():
        del samples[:2]


def save_once(ranks: Ranks) -> None:
    """Leaves one durable step behind, for others to load, and beside it what ``dcp.save`` makes of the same tensors."""
    body = Body(ranks, ranks.told["mib"], ranks.told["count"])
    everstep.checkpoint.save({"model": body.sharded}, 1, durable=True)
    of_environment().wait(1, is_durable=True, seconds=300.0)
    dcp.save(body.sharded, checkpoint_id=str(Path(ranks.told["folder"]) / "dcp"))


def loads(ranks: Ranks) -> None:
    """The newest step, this rank's part, into tensors that are there, or mapped; ``is_writer``: by the process that has saved it."""
    body = Body(ranks, ranks.told["mib"], ranks.told["count"])
    if ranks.told.get("is_writer"):
        everstep.checkpoint.save({"model": body.sharded}, 1)
    dist.barrier()
    (found,) = of_environment().latest()
    (weight, *_), expected = body.model.weights, body.mine[0]
    mine = weight.detach().chunk(ranks.world)[ranks.rank]
    for _ in range(1 + ranks.told["rounds"]):
        ranks.timed("memcpy", body.memcpy)
        for verify, name in ((False, "copied"), (True, "copied and verified")):
            mine.zero_()
            ranks.timed(name, lambda verify=verify: _load(ranks, body, found, verify=verify))
            assert torch.equal(mine, expected), "what was loaded is not what was saved"
        ranks.timed("mapped", lambda: _map(ranks, body, found, verify=False))
        ranks.timed("mapped and verified", lambda: _map(ranks, body, found, verify=True))
        ranks.timed("dcp.load with TieredReader", lambda: dcp.load({"model": body.sharded}, storage_reader=everstep.TieredReader()))
    for samples in ranks.samples.values():
        del samples[0]


def _regions(ranks: Ranks, body: Body, contents: Any) -> list[Region]:
    """This rank's rows of every tensor, wherever they lie."""
    wanted: list[Region] = []
    for name, tensor in contents.tensors.items():
        whole = body.model.get_parameter(name.removeprefix("model."))
        for chunk in tensor.chunks:
            begin, rows = chunk.offsets[0], chunk.sizes[0]
            mine = slice(ranks.rank * whole.shape[0] // ranks.world, (ranks.rank + 1) * whole.shape[0] // ranks.world)
            low, high = max(begin, mine.start), min(begin + rows, mine.stop)
            if low < high:
                into, lengths = whole.detach()[low:high], (high - low, *chunk.sizes[1:])
                offsets = (low - begin, *(0 for _ in chunk.sizes[1:]))
                wanted.append(Region(chunk.shard, name, chunk.offsets, chunk.sizes, offsets, lengths, dtype_of(tensor.dtype), into))
    return wanted


def _load(ranks: Ranks, body: Body, found: Any, *, verify: bool) -> None:
    with of_environment().read(found, verify=verify) as reader:
        reader.fill(_regions(ranks, body, reader.metadata()))
        ranks.notes["counts"] = reader.counts


def _map(ranks: Ranks, body: Body, found: Any, *, verify: bool) -> None:
    with of_environment().read(found, verify=verify) as reader:
        views = [reader.view(region) for region in _regions(ranks, body, reader.metadata())]
        assert all(view is not None for view in views), "a tensor could not be mapped"


def cold(ranks: Ranks) -> None:
    """From the object store, no memory tier: beside ``dcp.load`` of the same state from a folder on the same disk. Nothing is in the page cache."""
    body = Body(ranks, ranks.told["mib"], ranks.told["count"])
    (found,) = of_environment().latest()
    folder, store = Path(ranks.told["folder"]) / "dcp", Path(ranks.told["store"])
    shards = sorted((path for path in store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)[-ranks.world :]
    buffer = memoryview(bytearray(shards[ranks.rank].stat().st_size))
    for is_cold in (True, False):
        kind = "cold" if is_cold else "page-cached"
        for _ in range(ranks.told["rounds"]):
            ranks.timed("memcpy", body.memcpy)
            forget(ranks, folder, is_cold=is_cold)
            ranks.timed(f"dcp.load, {kind}", lambda: dcp.load(body.sharded, checkpoint_id=str(folder)))
            forget(ranks, store, is_cold=is_cold)
            ranks.timed(f"bare read, {kind}", lambda: _read_bare(shards[ranks.rank], buffer))
            forget(ranks, store, is_cold=is_cold)
            ranks.timed(f"StepReader, {kind}", lambda: _load(ranks, body, found, verify=True))
            forget(ranks, store, is_cold=is_cold)
            ranks.timed(f"TieredReader, {kind}", lambda: dcp.load({"model": body.sharded}, storage_reader=everstep.TieredReader()))


def _read_bare(path: Path, into: memoryview) -> None:
    """The same bytes by nothing but reads: what the disk and the kernel take."""
    with path.open("rb", buffering=0) as file:
        at = 0
        while got := file.readinto(into[at:]):
            at += got


def forget(ranks: Ranks, folder: Path, *, is_cold: bool) -> None:
    """Drops a folder's files from the page cache, for everybody on the machine: only these files."""
    dist.barrier()
    if is_cold and ranks.rank == 0:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    dist.barrier()


_ALL = {one.__name__: one for one in (first, saves, planner, save_once, loads, cold)}


def main() -> None:
    told = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.ERROR, stream=io.TextIOWrapper(sys.stderr.buffer, line_buffering=True))
    ranks = Ranks(told)
    _ALL[told["what"]](ranks)
    ranks.write()
    of_environment().close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
