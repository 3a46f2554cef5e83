"""What the peers' scripts share. They run in environments without Everstep, so nothing of ours is imported here.

The same state, the same memcpy as a reference, and the same two phases of waiting (a device computes) as in ``benchmarks.checkpoint_ranks``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

PHASE = 3.0
COUNT = 64


class Ranks:
    """This rank of two. ``samples`` are seconds of the slowest rank, by name; the first round is thrown away in the end."""

    def __init__(self) -> None:
        mib, rounds, self.out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
        self.rounds = rounds + 1
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[self.rank % len(cores)]})
        torch.set_num_threads(1)
        rows = mib * (1 << 20) // COUNT // 4
        self.tensors = [torch.arange(rows, dtype=torch.float32) + number for number in range(COUNT)]
        self._beside = [torch.empty_like(one).fill_(1.0) for one in self.tensors]
        self.samples: dict[str, list[float]] = defaultdict(list)
        for _ in range(3):
            self.memcpy()
        self.phase_s = PHASE * statistics.median(self.samples.pop("memcpy"))

    def memcpy(self) -> None:
        def copy() -> None:
            for source, target in zip(self.tensors, self._beside, strict=True):
                target.copy_(source)

        self.timed("memcpy", copy)

    def timed(self, name: str, call: Callable[[], object]) -> None:
        dist.barrier()
        began = time.perf_counter()
        call()
        self._note(name, time.perf_counter() - began)

    def stall(self, name: str, begin: Callable[[], object], settle: Callable[[], object]) -> None:
        """By how much a save makes two phases longer; ``settle`` comes before the state may change."""
        dist.barrier()
        began = time.perf_counter()
        begin()
        time.sleep(self.phase_s)
        settle()
        time.sleep(self.phase_s)
        self._note(name, time.perf_counter() - began - 2 * self.phase_s)

    def write(self) -> None:
        if self.rank == 0:
            self.out.write_text(json.dumps({name: some[1:] for name, some in self.samples.items()}))
        dist.barrier()

    def _note(self, name: str, seconds: float) -> None:
        slowest = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        self.samples[name].append(float(slowest))
