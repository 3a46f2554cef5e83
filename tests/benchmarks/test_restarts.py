"""Recovery in place beside our own restart from a checkpoint: two nodes of eight ranks each, one run, measured as `make bench` does."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import recovery
from benchmarks.recovery import first_step, is_settled, reforms_of
from everstep.protocol import Source
from tests.checkpoint.tiers import Node, memory_tiers, planned
from tests.everstep.plane import Job, Plane, script_launch

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]
RANKS = 16
SPARES = 1
EVERY = 5
LIMIT_S = 120.0
MOST_S = 50.0
MOST_OF_RESTART = 0.2


async def recovered_and_restarted(folder: Path, tiers: Sequence[Node]) -> tuple[float, float, Job]:
    """Seconds from the SIGKILL to the next step of all: of one rank, the median of three, and then of every process of the job."""
    plane = Plane(folder, len(tiers), {**os.environ, "OMP_NUM_THREADS": "1", "STEP_SLEEP_S": "0.1"}, tiers)
    launch = script_launch(recovery.SCRIPT, "64", "4", "1000000", "64", str(EVERY))
    job = Job("restarts", launch, RANKS, SPARES)
    await plane.start()
    try:
        await plane.submit(job)
        recovered = []
        for rank in (RANKS // 2, 0, RANKS - 1):
            await plane.until(lambda: is_settled(job) and len(job.ready) >= SPARES, LIMIT_S)
            recovered.append(await next_step_after_killing(plane, job, [job.members[rank]]))
        await plane.until(lambda: is_settled(job) and len(job.ready) >= SPARES and bool(job.saved), LIMIT_S)
        restarted = await next_step_after_killing(plane, job, [*job.members, *job.ready])
    finally:
        await plane.stop()
    return statistics.median(recovered), restarted, job


async def next_step_after_killing(plane: Plane, job: Job, victims: list[str]) -> float:
    """When many are killed one after the other, the first generation without them may be made before the last is dead."""
    number, killed = len(job.generations) + 1, time.time()
    for victim in victims:
        os.kill(job.pids[victim], signal.SIGKILL)
    await plane.until(lambda: len(job.generations) >= number and len(reforms_of(job, len(job.generations))) == RANKS, LIMIT_S)
    await plane.until(lambda: first_step(job, len(job.generations)) is not None, LIMIT_S)
    return (first_step(job, len(job.generations)) or 0.0) - killed


def test_sixteen_ranks_recover_in_a_fifth_of_what_a_restart_from_a_checkpoint_takes(tmp_path: Path) -> None:
    with memory_tiers(tmp_path, 2, namespaces=[planned("ns", replicas=2)]) as tiers:
        recovered, restarted, job = asyncio.run(recovered_and_restarted(tmp_path, list(tiers)))
    print(
        f"{RANKS} ranks on 2 nodes: recovery {recovered:.2f} s, restart from memory {restarted:.2f} s, {recovered / restarted:.0%} of it"
    )
    in_place = {Source.KEPT, Source.ROLLED_FORWARD, Source.PEER}
    assert {report.source for number in (2, 3, 4) for report in reforms_of(job, number)} <= in_place
    assert {report.source for report in reforms_of(job, len(job.generations))} == {Source.MEMORY}
    assert recovered <= MOST_S
    assert recovered <= MOST_OF_RESTART * restarted
