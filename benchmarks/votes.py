"""The vote of a step: ours beside gloo's all-reduce of the same numbers, with 2 … 16 ranks of this machine.

Usage: python -m benchmarks.votes [--quick] [--ranks 2,4,8,16] [--rounds 40] [--json FILE]

In each round all ranks rest as long as a device would compute, meet, and then either vote or all-reduce, in turns. The figure is the median, over the rounds, of
what the slowest rank took. All ranks share this machine's processors: hosts of their own are better off with either.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks import figures
from everstep.embedded.children import free_port
from everstep.protocol import Generation, Member
from everstep.resilience.escapes import Alone
from everstep.resilience.votes import Votes

RANKS = (2, 4, 8, 16)
QUICK = (2, 4)
REST_S = 0.05
NUMBERS = [1.0, 7.0, 0.25, 1.0, 0.09, 0.0, 0.0, 0.0]
"""As many as a step has."""
KINDS = ("all-reduce", "vote")


def rank(number: int, size: int, port: int, rounds: int, told: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=size)
    votes = Votes("127.0.0.1")
    ports: list[Any] = [None] * size
    dist.all_gather_object(ports, votes.open())
    members = tuple(Member(one, f"p{one}", f"n{one}", "127.0.0.1", 0) for one in range(size))
    votes.meet(Generation("bench", 1, "start", members, "", "token"), number, ports, Alone())
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(2 * rounds + 2):
        kind = KINDS[turn % 2]
        time.sleep(REST_S)
        dist.barrier()
        began = time.perf_counter()
        sums = voted(votes) if kind == "vote" else reduced()
        took[kind].append(time.perf_counter() - began)
        if sums[0] != size:
            message = f"{kind}: {sums[0]:g} ranks were counted"
            raise RuntimeError(message)
    told.put((number, {kind: seconds[1:] for kind, seconds in took.items()}))  # the first one warms up
    dist.barrier()
    dist.destroy_process_group()


def voted(votes: Votes) -> list[float]:
    votes.cast(NUMBERS)
    return votes.count()


def reduced() -> list[float]:
    numbers = torch.tensor(NUMBERS, dtype=torch.float64)
    dist.all_reduce(numbers)
    sums: list[float] = numbers.tolist()
    return sums


def measured(size: int, rounds: int) -> dict[str, float]:
    """Seconds, by kind."""
    told = multiprocessing.get_context("spawn").SimpleQueue()
    context = multiprocessing.spawn(rank, (size, free_port(), rounds, told), nprocs=size, join=False)
    found = [told.get()[1] for _ in range(size)]
    while not context.join():
        pass
    return {kind: statistics.median(max(turn) for turn in zip(*(one[kind] for one in found), strict=True)) for kind in KINDS}


def main() -> None:
    options = figures.options_of_ranks(__doc__, RANKS, QUICK, rounds=(40, 10))
    environment, rows = figures.environment(), []
    print(f"what {len(NUMBERS)} numbers of every rank take until all know their sums, ms; medians of {options.rounds}")
    print(f"{figures.told(environment)}\n\n  ranks   gloo's all-reduce   vote   times as long")
    for size in options.ranks:
        found = measured(size, options.rounds)
        rows.append({"ranks": size, **found})
        theirs, ours = (found[kind] * 1e3 for kind in KINDS)
        print(f"  {size:5d} {theirs:19.2f} {ours:6.2f} {theirs / ours:15.1f}")
    figures.write(options, {"environment": environment, "rows": rows})


if __name__ == "__main__":
    main()
