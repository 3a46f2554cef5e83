"""What the ranks of the checkpoint benchmark have in common: their state, the memcpy that everything is compared with, clocks, stalls.

A sample is the time of the slowest rank. A reference is taken in every round, beside what it is the reference of, by both ranks at the same time: on
two shared cores only figures of one run can be compared.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import everstep

MIB = 1 << 20
PHASE = 3.0
"""A step's computing takes so many times as long as copying the state."""


class Ranks:
    """This rank among the others. ``samples`` are seconds by name, in rounds."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if told.get("is_pinned", True):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[self.rank % len(cores)]} if self.world > 1 else cores)
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.mesh: DeviceMesh = init_device_mesh("cpu", (self.world,))
        self.samples: dict[str, list[float]] = defaultdict(list)
        self.notes: dict[str, Any] = {}

    def timed(self, name: str, call: Callable[[], object]) -> float:
        """Notes how long a call took the slowest rank; all begin together."""
        dist.barrier()
        began = time.perf_counter()
        call()
        return self.note(name, time.perf_counter() - began)

    def note(self, name: str, seconds: float) -> float:
        slowest = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        self.samples[name].append(float(slowest))
        return float(slowest)

    def write(self) -> None:
        if self.rank == 0:
            Path(self.told["out"]).write_text(json.dumps({"samples": self.samples, "notes": self.notes}))
        dist.barrier()


class Model(torch.nn.Module):
    """``mib`` of parameters a rank, in ``count`` tensors of all ranks' rows. Their values differ, so that nothing can be shared or skipped."""

    def __init__(self, mib: float, count: int, world: int) -> None:
        super().__init__()
        rows = int(mib * MIB / count / 4 / 1024)
        whole = torch.arange(rows * world * 1024, dtype=torch.float32).view(rows * world, 1024)
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(whole + number, requires_grad=False) for number in range(count))


class Body:
    """One state in three shapes: for ``Checkpointer`` a model that each rank holds whole, for DCP its rows as DTensors, and the bare local tensors.

    The local tensors have memory of their own: PyTorch's ways to save copy the whole storage behind a view.
    ``paced`` has an optimizer, before whose step a save must have copied; it steps one small tensor, so that it costs nothing.
    """

    def __init__(self, ranks: Ranks, mib: float, count: int) -> None:
        self.model = Model(mib, count, ranks.world)
        self.mine = [weight.detach().chunk(ranks.world)[ranks.rank].clone() for weight in self.model.weights]
        self.sharded = {
            f"weights.{number}": DTensor.from_local(one, ranks.mesh, [Shard(0)], run_check=False)
            for number, one in enumerate(self.mine)
        }
        self.nbytes = sum(one.nbytes for one in self.mine)
        small = torch.nn.Parameter(torch.zeros(8))
        small.grad = torch.zeros(8)
        self.optimizer = torch.optim.SGD([small], lr=0.0)
        self.unpaced = everstep.State(model=self.model)
        self.paced = everstep.State(model=self.model, optimizer=self.optimizer)
        self._beside = [torch.empty_like(one).fill_(1.0) for one in self.mine]

    def memcpy(self) -> None:
        """The reference: the same bytes into memory that is mapped and has been written."""
        for source, target in zip(self.mine, self._beside, strict=True):
            target.copy_(source)


def sleeping(seconds: float) -> Callable[[], None]:
    """Computing on a device: this process waits, and its core is free."""
    return lambda: time.sleep(seconds)


def multiplying(seconds: float) -> Callable[[], None]:
    """Computing on this core, in torch; the work is fixed beforehand, so that a stall shows as more time."""
    left, right = torch.rand(384, 384), torch.rand(384, 384)

    def once() -> None:
        torch.mm(left, right)

    for _ in range(20):
        once()
    began = time.perf_counter()
    for _ in range(50):
        once()
    rounds = max(1, round(seconds / ((time.perf_counter() - began) / 50)))

    def compute() -> None:
        for _ in range(rounds):
            once()

    return compute


def stall(
    ranks: Ranks, name: str, compute: Callable[[], None], begin: Callable[[], Callable[[], None]], after: Callable[[], None]
) -> None:
    """Notes by how much a save makes two phases of computing longer. ``begin`` saves, and returns what must be called before the state may change.

    The phases without a save are measured in the same round. ``after`` waits for the rest of the save, and is not counted.
    """

    def phases(settle: Callable[[], None]) -> None:
        compute()
        settle()
        compute()

    dist.barrier()
    began = time.perf_counter()
    phases(lambda: None)
    bare = time.perf_counter() - began
    dist.barrier()
    began = time.perf_counter()
    phases(begin())
    took = time.perf_counter() - began
    after()
    ranks.note(name, took - bare)


def median(samples: list[float]) -> float:
    return statistics.median(samples)
