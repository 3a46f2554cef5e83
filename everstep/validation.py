"""``python -m everstep.validation``: whether nodes can train together. One process on each; all of them compute the same small run.

A linear model is fitted to data that every rank makes for itself, with its gradients reduced over all ranks: what each rank ends with must be
the same to the last bit, and the loss must have fallen. Exits with 0 and a sentence, or with 1 and what is wrong.

With ``--reduce`` nothing is fitted: all of them sum up blocks of that many MiB, and it is measured how fast. The sentence is then a JSON object,
``{"mib_per_s", "ms"}``: the bandwidth that the links between them carried, and the time for a block of eight bytes, both the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

_STEPS = 20
_WIDTH = 256
_MIB = 1024 * 1024
_ROUNDS = 5
_SMALL_ROUNDS = 20


class Differs(Exception):
    """The ranks do not agree on what they have computed."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m everstep.validation", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--meet", required=True, metavar="HOST:PORT", help="where the first rank waits for the others")
    parser.add_argument("--address", required=True, help="of this node")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the others are waited for")
    parser.add_argument("--reduce", type=float, metavar="MIB", help="measure all-reduces of this size instead of training")
    try:
        said = _run(parser.parse_args(arguments))
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the finding)
        sys.stdout.write(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}\n")
        return 1
    sys.stdout.write(f"{said}\n")
    return 0


def _run(given: argparse.Namespace) -> str:
    host, _, port = given.meet.rpartition(":")
    patience = timedelta(seconds=given.seconds)
    store = dist.TCPStore(host, int(port), given.size, is_master=given.rank == 0, timeout=patience)
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001  (no public way to name the address)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=given.address)]  # noqa: SLF001
    options._timeout = patience  # noqa: SLF001
    group: Any = dist.ProcessGroupGloo(dist.PrefixStore("validation", store), given.rank, given.size, options)
    if given.reduce is not None:
        return json.dumps(_measure(group, given.size, given.reduce))
    began = time.monotonic()
    first, last, weights = _train(group, given.rank, given.size)
    _compare(group, weights, given.size)
    group.barrier().wait()
    if not last < first:
        message = f"the loss did not fall: {first:.6g}, then {last:.6g}"
        raise Differs(message)
    seconds = time.monotonic() - began
    return f"{given.size} nodes trained {_STEPS} steps in {seconds:.2f} s, loss {first:.4g} to {last:.4g}"


def _train(group: Any, rank: int, size: int) -> tuple[float, float, torch.Tensor]:
    """Collectives, in order, the same on every rank: 1. the gradient of each step, 2. the loss of each step."""
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(64, _WIDTH, generator=generator)
    targets = inputs @ torch.linspace(-1, 1, _WIDTH)
    weights = torch.zeros(_WIDTH)
    losses = []
    for _ in range(_STEPS):
        error = inputs @ weights - targets
        gradient = inputs.T @ error / len(inputs)
        group.allreduce([gradient]).wait()
        loss = (error**2).mean().reshape(1)
        group.allreduce([loss]).wait()
        losses.append(float(loss) / size)
        weights -= 0.05 * gradient / size
    return losses[0], losses[-1], weights


def _measure(group: Any, size: int, mib: float) -> dict[str, float]:
    """Collectives, in order, the same on every rank: large all-reduces, one of them to warm up, then small ones, then a barrier."""
    moved = 2 * (size - 1) / size * mib  # by each link, whatever the algorithm
    large = [_timed(group, size, max(1, int(mib * _MIB / 4))) for _ in range(1 + _ROUNDS)][1:]
    small = [_timed(group, size, 2) for _ in range(_SMALL_ROUNDS)]
    group.barrier().wait()
    return {"mib_per_s": moved / max(statistics.median(large), 1e-9), "ms": statistics.median(small) * 1000}


def _timed(group: Any, size: int, count: int) -> float:
    block = torch.ones(count)
    began = time.monotonic()
    group.allreduce([block]).wait()
    seconds = time.monotonic() - began
    if not bool((block == size).all()):
        message = f"a sum of {size} ones was not {size}"
        raise Differs(message)
    return seconds


def _compare(group: Any, weights: torch.Tensor, size: int) -> None:
    gathered = [[torch.empty_like(weights) for _ in range(size)]]
    group.allgather(gathered, [weights]).wait()
    for rank, other in enumerate(gathered[0]):
        if not torch.equal(other, weights):
            message = f"rank {rank} ended with other weights"
            raise Differs(message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
