"""Recovery in place beside our own restarts from a checkpoint: two nodes of eight ranks each, one run, measured as `make bench` does.

A restart is that of all processes of the job, as when a job is started again: nothing that was made ready outlives them, and each imports torch. What the
same restart takes where the nodes' zygotes have been left is told beside it: forking is part of how recovery is quick, not of what it is compared with.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import recovery
from benchmarks.recovery import first_step, is_settled, reforms_of
from everstep.protocol import Source
from tests.checkpoint.tiers import Node, memory_tiers, planned
from tests.everstep.plane import Job, Plane, script_launch

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]
NODES = 2
RANKS = 16
SPARES = 1
EVERY = 5
LIMIT_S = 120.0
MOST_S = 50.0
MOST_OF_RESTART = 0.2


@dataclass(frozen=True)
class Seconds:
    """From the SIGKILL to the next step of all."""

    recovered: float
    """Of one rank; the median of three."""
    forked: float
    """Of all ranks and spares."""
    restarted: float
    """Of the zygotes too."""


async def recovered_and_restarted(folder: Path, tiers: Sequence[Node]) -> tuple[Seconds, Job]:
    plane = Plane(folder, len(tiers), {**os.environ, "OMP_NUM_THREADS": "1", "STEP_SLEEP_S": "0.1"}, tiers)
    launch = script_launch(recovery.SCRIPT, "64", "4", "1000000", "64", str(EVERY))
    job = Job("restarts", launch, RANKS, SPARES)
    await plane.start()
    try:
        await plane.submit(job)
        recovered = []
        for rank in (RANKS // 2, 0, RANKS - 1):
            await plane.until(lambda: is_settled(job) and len(job.ready) >= SPARES, LIMIT_S)
            recovered.append(await next_step_after_killing(plane, job, [job.pids[job.members[rank]]]))
        restarted = []
        for others in ([], zygotes()):
            await plane.until(lambda: is_settled(job) and len(job.ready) >= SPARES and bool(job.saved), LIMIT_S)
            victims = [*others, *(job.pids[process] for process in (*job.members, *job.ready))]
            restarted.append(await next_step_after_killing(plane, job, victims))
            assert {report.source for report in reforms_of(job, len(job.generations))} == {Source.MEMORY}
    finally:
        await plane.stop()
    return Seconds(statistics.median(recovered), *restarted), job


def zygotes() -> list[int]:
    """Those of this process's agents."""
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    found = [int(pid) for pid in children if b"everstep.resilience.zygote" in Path("/proc", pid, "cmdline").read_bytes()]
    assert len(found) == NODES
    return found


async def next_step_after_killing(plane: Plane, job: Job, victims: list[int]) -> float:
    """When many are killed one after the other, the first generation without them may be made before the last is dead."""
    number, killed = len(job.generations) + 1, time.time()
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    await plane.until(lambda: len(job.generations) >= number and len(reforms_of(job, len(job.generations))) == RANKS, LIMIT_S)
    await plane.until(lambda: first_step(job, len(job.generations)) is not None, LIMIT_S)
    return (first_step(job, len(job.generations)) or 0.0) - killed


def test_sixteen_ranks_recover_in_a_fifth_of_what_a_restart_from_a_checkpoint_takes(tmp_path: Path) -> None:
    with memory_tiers(tmp_path, NODES, namespaces=[planned("ns", replicas=2)]) as tiers:
        took, job = asyncio.run(recovered_and_restarted(tmp_path, list(tiers)))
    print(f"{RANKS} ranks on {NODES} nodes: recovery {took.recovered:.2f} s")
    for what, seconds in {"all anew": took.restarted, "forked from zygotes": took.forked}.items():
        print(f"  restart from memory, {what}: {seconds:.2f} s; recovery takes {took.recovered / seconds:.0%} of it")
    in_place = {Source.KEPT, Source.ROLLED_FORWARD, Source.PEER}
    assert {report.source for number in (2, 3, 4) for report in reforms_of(job, number)} <= in_place
    assert took.recovered <= MOST_S
    assert took.recovered <= MOST_OF_RESTART * took.restarted
