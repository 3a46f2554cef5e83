"""Every committed step is told once and for all, whoever was to tell it and whoever was to hear it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agent.processes import until_gone
from everstep.testing import Fault, arm
from tests.everstep import drills
from tests.everstep.plane import Job, Plane, script_launch
from tests.everstep.scripts import tokens

LAST, UNTIL = 24, 36
LIMIT_S = 60.0


async def told(mode: str, folder: Path) -> Job:
    """Rank 0 dies at the beginning of a step while its agent has been away for some."""
    plane = Plane(folder, 2, dict(os.environ))
    await plane.start()
    try:
        notes = folder / "notes"
        notes.mkdir()
        arm(notes / "faults", [Fault(0, "forward", step=LAST)])
        arguments = (mode, str(notes), str(UNTIL), str(notes / "faults"), "0.05")
        job = Job("job", script_launch(drills.SCRIPT, *arguments, seed=tokens.SEED), 2, 1)
        await plane.submit(job)
        await plane.until(lambda: max(job.losses, default=0) >= 3, LIMIT_S)
        node, pid = job.placed[job.members[0]], job.pids[job.members[0]]
        await node.supervisor.detach()
        async with asyncio.timeout(LIMIT_S):
            await until_gone(pid)
        assert max(job.losses) < LAST - 1, "what is lost with the rank is not worth telling of"
        await plane.start_supervisor(node)
        await plane.finish(job, LIMIT_S)
    finally:
        await plane.stop()
    return job


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "hsdp"])
def test_steps_that_a_dead_rank_could_not_tell_are_told_by_whoever_takes_over(mode: str, tmp_path: Path) -> None:
    job = asyncio.run(told(mode, tmp_path))
    assert [job.losses.get(step) for step in range(UNTIL)] == pytest.approx(drills.reference(UNTIL), rel=1e-9)
