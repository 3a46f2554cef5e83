"""Real ranks for tests: processes that import torch once, form a gloo group of any size for each program, and report what it returned or raised."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PATIENCE_S = 100.0
_NUMBERS = itertools.count(1)


class Failed(AssertionError):
    """A program raised; the message is its traceback."""


class Ranks:
    def __init__(self, most: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = Path(tempfile.mkdtemp(prefix="everstep-ranks-"))
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(most):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, world: int, program: Callable[..., Any], environments: Sequence[Mapping[str, str]], *arguments: Any) -> list[Any]:
        """What ``program(rank, world, *arguments)`` returned on each rank. Rank r has ``environments[r % len]``. Raises Failed."""
        number = next(_NUMBERS)
        meeting = f"file://{self._folder}/{number}"
        for rank in range(world):
            self._pipes[rank].send((number, program, arguments, rank, world, meeting, dict(environments[rank % len(environments)])))
        told = [self._hear(rank, number) for rank in range(world)]
        faults = [f"rank {rank}:\n{words}" for rank, (is_good, words) in enumerate(told) if not is_good]
        if faults:
            raise Failed("\n".join(faults))
        return [returned for _, returned in told]

    def close(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()

    def _hear(self, rank: int, number: int) -> tuple[bool, Any]:
        """What it says of program ``number``; a late answer to an earlier one, whose test has given up, is nobody's."""
        while True:
            assert self._pipes[rank].poll(_PATIENCE_S), f"rank {rank} has not answered within {_PATIENCE_S:.0f} s"
            answered, *told = self._pipes[rank].recv()
            if answered == number:
                return told[0], told[1]


@contextlib.contextmanager
def ranks(most: int) -> Iterator[Ranks]:
    made = Ranks(most)
    try:
        yield made
    finally:
        made.close()


def _work(pipe: Connection) -> None:
    import torch  # noqa: PLC0415  (in the children alone)
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    while (asked := pipe.recv()) is not None:
        number, program, arguments, rank, world, meeting, environment = asked
        for name in [one for one in os.environ if one.startswith("EVERSTEP_")]:
            del os.environ[name]
        os.environ.update(environment)
        try:
            _meet(meeting, rank, world)
            answer = (number, True, program(rank, world, *arguments))
        except BaseException:  # noqa: BLE001  (CheckpointException is one)
            answer = (number, False, traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send(answer)


def _meet(meeting: str, rank: int, world: int) -> None:
    """Form the group, and wait until all have: a rank that leaves while another still connects makes that one fail."""
    import torch.distributed as dist  # noqa: PLC0415

    patience = timedelta(seconds=_PATIENCE_S - 10)
    try:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=patience)
    except BaseException:
        _forget_the_failed_group()
        raise
    dist.barrier()


def _forget_the_failed_group() -> None:
    """A failed construction leaves torch's count of groups raised, and with it the name under which the next one would look for its peers."""
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
