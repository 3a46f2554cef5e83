"""An error of user code ends a generation and no process: the same processes go on, and the run ends as if nothing had been raised, bit for bit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch

from everstep.errors import StateLost
from everstep.resilience.retry import may_stay
from everstep.testing import Fault, arm
from tests.everstep.plane import Job, JobFailed, Plane, script_launch
from tests.everstep.test_kills import SCRIPT, read_notes

RANKS = 2
STEPS = 14
LIMIT_S = 60.0
IN_STEP = ("forward", "all-reduce", "after-reduce", "vote", "before-update", "mid-update", "after-update")


async def trained(folder: Path, mode: str, faults: list[Fault], max_restarts: int, *names: str) -> list[Job]:
    plane = Plane(folder, 1, dict(os.environ))
    await plane.start()
    try:
        jobs = []
        for name in names:
            notes = folder / name
            notes.mkdir()
            arm(notes / "faults", faults if name == "raising" else [])
            launch = script_launch(SCRIPT, mode, str(notes), str(STEPS), str(notes / "faults"))
            jobs.append(Job(name, launch, RANKS, 0, max_restarts=max_restarts))
            await plane.submit(jobs[-1])
        for job in jobs:
            await plane.finish(job, LIMIT_S)
    finally:
        await plane.stop()
    return jobs


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["manual", pytest.param("ddp", marks=pytest.mark.slow)])
def test_an_error_raised_in_a_rank_leaves_every_process_and_no_trace(mode: str, tmp_path: Path) -> None:
    faults = [Fault(number % RANKS, phase, step=2 + number, kind="raise") for number, phase in enumerate(IN_STEP)]
    faults += [Fault(rank, "forward", step=11, kind="raise") for rank in range(RANKS)]
    reference, raising = asyncio.run(trained(tmp_path, mode, faults, len(faults), "reference", "raising"))

    expected, seen = read_notes(tmp_path / "reference"), read_notes(tmp_path / "raising")
    assert seen.losses == expected.losses
    assert raising.losses == reference.losses
    assert {report.digest for report in raising.finished.values()} == {report.digest for report in reference.finished.values()}
    assert len(seen.identities) == RANKS, "a file a process: nobody was started anew"
    assert all(len(versions) == 1 for versions in seen.identities.values())
    assert [report.exit_code for report in raising.exits] == [0] * RANKS
    assert 1 + len(IN_STEP) + 1 <= len(raising.generations) <= 1 + len(IN_STEP) + RANKS
    assert len(IN_STEP) + 1 <= len(raising.raised) <= len(faults), (
        "who raises after its generation was given up has nothing to tell"
    )
    assert all("InjectedFault" in report.traceback and "drive.py" not in report.traceback for report in raising.raised)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_that_raises_more_often_than_it_may_fails_with_what_was_raised(tmp_path: Path) -> None:
    faults = [Fault(1, "forward", step=step, kind="raise") for step in (3, 5)]
    with pytest.raises(JobFailed, match="InjectedFault"):
        asyncio.run(trained(tmp_path, "manual", faults, 1, "raising"))


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("none left"), StateLost()])
def test_what_would_only_happen_again_in_the_same_process_is_no_reason_to_stay(error: Exception) -> None:
    assert not may_stay(error)
    assert may_stay(ValueError("the user's own mistake"))
