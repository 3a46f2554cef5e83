"""A notice that a node is about to go has the next step saved by all ranks, to memory and to the object store, once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from everstep.checkpoint.tiers import Tiers
from everstep.notices import LEAVING_CAUSE, Evacuation
from everstep.testing import arm
from tests.checkpoint.tiers import memory_tiers, planned
from tests.everstep.plane import Job, Plane, script_launch

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
NEVER = 100_000
LIMIT_S = 60.0


class Told:
    """A job of two ranks and a spare, which saves nothing of its own accord; the node of rank 1 is the one that goes, whichever that is."""

    def __init__(self, folder: Path, plane: Plane, job: Job, tiers: Tiers) -> None:
        self.folder, self.plane, self.job, self.tiers = folder, plane, job, tiers

    @property
    def step(self) -> int:
        return max(self.job.losses, default=-1)

    @property
    def leaver(self) -> str:
        return self.job.members[1]

    async def after(self, steps: int) -> None:
        wanted = self.step + steps
        await self.plane.until(lambda: self.step >= wanted, LIMIT_S)

    def evacuate(self, told: Evacuation) -> None:
        self.job.placed[self.leaver].supervisor.evacuate(told)

    async def saved(self, count: int) -> None:
        await self.plane.until(lambda: len(self.job.saved) >= count, LIMIT_S)

    async def durable(self, step: int) -> None:
        await self.plane.until(lambda: any(one.step >= step and one.is_durable for one in self.tiers.latest()), LIMIT_S)

    def notices(self) -> list[str]:
        return [line for path in (self.folder / "job").glob("notices-*.jsonl") for line in path.read_text().splitlines()]


def told_to_leave(folder: Path, scenario: Callable[[Told], Awaitable[None]]) -> None:
    async def run() -> None:
        with memory_tiers(folder, 2, namespaces=[planned("ns", replicas=2)]) as tiers:
            plane = Plane(folder, 2, dict(os.environ), list(tiers))
            await plane.start()
            try:
                notes = folder / "job"
                notes.mkdir()
                arm(notes / "faults", [])
                arguments = ("ddp", str(notes), str(NEVER), str(notes / "faults"), str(NEVER), str(NEVER))
                job = Job("job", script_launch(SCRIPT, *arguments), 2, 1)
                await plane.submit(job)
                here = Told(folder, plane, job, Tiers.from_environment(tiers[0].environment()))
                await here.after(5)
                await scenario(here)
                here.tiers.close()
            finally:
                await plane.stop()

    asyncio.run(run())


def test_a_notice_saves_the_next_step_on_all_ranks_durably_and_once(tmp_path: Path) -> None:
    async def scenario(here: Told) -> None:
        step, deadline = here.step, time.time() + 180
        here.evacuate(Evacuation(0, "taken back", deadline))
        await here.saved(1)
        (saved,) = here.job.saved
        assert saved.step > step
        await here.durable(saved.step)
        assert time.time() < deadline
        here.evacuate(Evacuation(3, "taken back, says the control plane", deadline + 0.2))
        await here.after(30)
        assert len(here.job.saved) == 1, "the same notice, told by somebody else"
        assert '"why": "taken back' in here.notices()[-1]
        here.evacuate(Evacuation(4, "stays", is_over=True))
        noticed = len(here.notices())
        await here.after(30)
        assert len(here.notices()) < noticed + 30
        here.evacuate(Evacuation(5, "taken back after all", deadline))
        await here.saved(2)

    told_to_leave(tmp_path, scenario)


def test_a_rank_that_is_handed_over_is_saved_by_those_who_take_over_and_loses_no_step(tmp_path: Path) -> None:
    async def scenario(here: Told) -> None:
        await here.plane.until(lambda: bool(here.job.ready), LIMIT_S)
        step = here.step
        await here.plane.replace(here.job, here.leaver, f"{LEAVING_CAUSE}: rank 1 (taken back); others take over.")
        await here.saved(1)
        assert here.job.saved[0].step > step
        await here.durable(here.job.saved[0].step)
        told = [report for report in here.job.reformed if report.generation == 2]
        assert {report.source for report in told} <= {"kept", "rolled-forward", "peer"}
        assert sorted(here.job.losses) == list(range(here.step + 1))

    told_to_leave(tmp_path, scenario)


def test_a_job_without_checkpoints_just_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        plane = Plane(tmp_path, 1, dict(os.environ))
        await plane.start()
        try:
            (tmp_path / "job").mkdir()
            arm(tmp_path / "faults", [])
            job = Job("job", script_launch(SCRIPT, "ddp", str(tmp_path / "job"), "60", str(tmp_path / "faults")), 2, 0)
            await plane.submit(job)
            await plane.until(lambda: bool(job.losses), LIMIT_S)
            plane.nodes[0].supervisor.evacuate(Evacuation(1, "taken back", time.time() + 300))
            await plane.finish(job, LIMIT_S)
            assert (len(job.generations), job.saved) == (1, [])
        finally:
            await plane.stop()

    asyncio.run(run())
