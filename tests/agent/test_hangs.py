"""Processes that hang are told, each by the right name, and are of no consequence once another one has their place."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import processes
from agent.hangs import Hangs, stack_of
from agent.processes import Record
from everstep.evidence import HANG_AFTER_S, HANG_AFTER_VARIABLE, Hung, HungReport
from everstep.protocol import Assignment, Generation, Launch, Member
from everstep.testing import arm
from tests.everstep.plane import Job, Plane, script_launch
from tests.patience import PATIENCE

SCRIPT = Path(__file__).parents[1] / "everstep" / "scripts" / "sick.py"
LIMIT_S = 20.0
AFTER_S = 1.0 * PATIENCE
PULSE = {"generation": 1, "step": 5, "seconds": 0.1, "limit_s": 4.0}
STUBBORN = """
import faulthandler, signal, sys
from everstep.local_protocol import STACKS_SIGNAL
faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True)
def never_comes_back():
    print("up", flush=True)
    while True:
        pass
never_comes_back()
"""


def a_job(folder: Path, until: int, spares: int = 1, **plan: Any) -> Job:
    arm(folder / "faults", [])
    launch = script_launch(SCRIPT, str(folder), str(until), str(folder / "faults"), json.dumps(plan))
    return Job("job", replace(launch, env={**launch.env, HANG_AFTER_VARIABLE: str(AFTER_S)}), 2, spares)


def trained(folder: Path, job: Job, scenario: Callable[[Plane, Job], Awaitable[None]]) -> None:
    async def through() -> None:
        plane = Plane(folder / "plane", 1, dict(os.environ))
        await plane.start()
        try:
            await plane.submit(job)
            await scenario(plane, job)
        finally:
            await plane.stop()

    asyncio.run(through())


def told(job: Job, how: Hung) -> list[HungReport]:
    return [report for report in job.evidence if isinstance(report, HungReport) and report.how is how]


@pytest.mark.timeout(300)
def test_a_rank_that_computes_for_ever_is_told_with_its_stack_and_its_place_taken_without_a_step_lost(tmp_path: Path) -> None:
    job = a_job(tmp_path, 20, hangs=[1, 8], ddp=True)

    async def scenario(plane: Plane, job: Job) -> None:
        await plane.until(lambda: bool(told(job, Hung.COMPUTING)) and bool(told(job, Hung.WAITING)), LIMIT_S)
        hung = told(job, Hung.COMPUTING)[0].process
        assert job.members.index(hung) == 1
        await plane.replace(job, hung)
        await plane.until(lambda: hung in job.exited_at, LIMIT_S)
        await plane.finish(job, LIMIT_S)

    trained(tmp_path, job, scenario)
    hung, waits = told(job, Hung.COMPUTING)[0], told(job, Hung.WAITING)[0]
    assert "in hang_once" in hung.stack.split("\nThread ")[0]
    assert (hung.step, waits.step) == (8, 8)
    assert sorted(job.losses) == list(range(20))
    assert [(report.rank, report.step) for report in job.reformed if report.generation == 2 and report.rank == 0] == [(0, 8)]
    assert next(report.signal for report in job.exits if report.process == hung.process) in {signal.SIGTERM, signal.SIGKILL}
    survivors = {report.process for report in job.reformed if report.rank == 0}
    assert len(survivors) == 1, "who waited keeps its process"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_that_is_stopped_is_told_as_frozen_and_is_killed_when_its_place_is_taken(tmp_path: Path) -> None:
    job = a_job(tmp_path, 60, pace_s=0.1)

    async def scenario(plane: Plane, job: Job) -> None:
        await plane.until(lambda: max(job.losses, default=0) >= 25, LIMIT_S)  # and has said so
        victim = job.members[1]
        os.kill(job.pids[victim], signal.SIGSTOP)
        await plane.until(lambda: any(report.process == victim for report in told(job, Hung.FROZEN)), LIMIT_S)
        await plane.replace(job, victim)
        await plane.until(lambda: victim in job.exited_at, LIMIT_S)
        await plane.finish(job, LIMIT_S)

    trained(tmp_path, job, scenario)
    frozen = told(job, Hung.FROZEN)[0]
    assert "is stopped by a signal" in frozen.stack
    assert sorted(job.losses) == list(range(60))
    assert [report.signal for report in job.exits if report.process == frozen.process] == [signal.SIGKILL]


# ------------------------------------------------------------------------------------------------ the agent's half alone


class Desk:
    """What an agent has of one process."""

    def __init__(self, folder: Path, pid: int = 0) -> None:
        self.record = Record("job", "p-1", str(folder / "p-1.log"), pid, 0)
        self.reports: list[Any] = []
        self.hangs = Hangs(self.reports.append, {"p-1": self.record}.get)


def test_silence_counts_from_the_last_pulse_and_is_told_again_when_it_has_doubled(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def watch() -> None:
        began = time.monotonic()
        desk.hangs.hear("job", "p-1", PULSE)
        for second in range(1, 18):
            desk.hangs.look(began + second)
            while desk.hangs._dumps:
                await asyncio.sleep(0)

    asyncio.run(watch())
    assert [(report.how, round(report.seconds)) for report in desk.reports] == [(Hung.FROZEN, 5), (Hung.FROZEN, 10)]
    assert desk.hangs.is_hung("p-1")


def test_what_an_agent_did_not_hear_while_it_stood_still_itself_counts_against_nobody(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def watch() -> None:
        desk.hangs.hear("job", "p-1", PULSE)
        desk.hangs.look(time.monotonic() + 60.0, slept=59.0)

    asyncio.run(watch())
    assert not desk.reports


@pytest.mark.parametrize(("launch", "limit_s"), [({}, HANG_AFTER_S), ({"env": {HANG_AFTER_VARIABLE: "5"}}, 5.0)])
def test_a_rank_that_never_spoke_to_this_agent_is_silent_from_the_moment_it_was_expected(
    tmp_path: Path, launch: dict[str, Any], limit_s: float
) -> None:
    """It was stopped before the agent began anew; p-2 runs elsewhere."""
    desk = Desk(tmp_path)
    ranks = (Member(0, "p-1", "n-1", "127.0.0.1"), Member(1, "p-2", "n-2", "127.0.0.2"))
    generation = Generation("job", 3, "", ranks, "127.0.0.1:1", "")

    async def watch(assignment: Assignment) -> None:
        desk.hangs.expect(assignment)
        for seconds in (limit_s - 0.5, limit_s + 0.5):
            assert not desk.reports
            desk.hangs.look(time.monotonic() + seconds)
            while desk.hangs._dumps:
                await asyncio.sleep(0)

    asyncio.run(watch(Assignment("job", Launch(("python", "train.py"), "/", **launch), (), generation)))
    assert [(report.process, report.how, report.limit_s) for report in desk.reports] == [("p-1", Hung.FROZEN, limit_s)]


def test_nothing_is_expected_of_a_script_that_knows_nothing_of_us(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    generation = Generation("job", 3, "", (Member(0, "p-1", "n-1", "127.0.0.1"),), "127.0.0.1:1", "")
    desk.hangs.expect(Assignment("job", Launch(("python", "train.py"), "/", is_plain=True), (), generation))
    desk.hangs.look(time.monotonic() + 1e6)
    assert not desk.hangs._dumps


def test_a_pulse_ends_the_suspicion_of_a_process(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.hangs.hear("job", "p-1", {**PULSE, "seconds": 5.0, "is_waiting": False, "stack": "here"})
    assert desk.hangs.is_hung("p-1")
    desk.hangs.hear("job", "p-1", {**PULSE, "seconds": 5.5})
    assert desk.hangs.is_hung("p-1"), "it speaks between two stacks, and is where it was"
    desk.hangs.hear("job", "p-1", PULSE)
    assert not desk.hangs.is_hung("p-1")


def test_who_waits_is_told_but_not_condemned_and_its_stack_is_in_its_log(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.hangs.hear("job", "p-1", {**PULSE, "seconds": 5.0, "is_waiting": True, "stack": "in all_reduce"})
    assert [report.how for report in desk.reports] == [Hung.WAITING]
    assert not desk.hangs.is_hung("p-1")
    assert "in all_reduce" in Path(desk.record.log).read_text()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_stack_of_a_process_that_does_not_answer_is_read_from_outside(tmp_path: Path, is_stopped: bool) -> None:
    log = tmp_path / "p-1.log"
    with log.open("ab") as output:
        child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=output, stderr=output, cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + 30 * PATIENCE
        while "up" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        if is_stopped:
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        record = Record("job", "p-1", str(log), child.pid, processes.start_time(child.pid) or 0)
        stack = asyncio.run(stack_of(record))
        assert child.poll() is None, "it lives on"
        assert ("stopped by a signal" in stack) == is_stopped
        assert "never_comes_back" in stack
        assert "never_comes_back" in log.read_text()
    finally:
        child.kill()
        child.wait()


def test_a_process_that_would_be_ended_by_the_signal_is_not_asked(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        record = Record("job", "p-1", str(tmp_path / "log"), child.pid, processes.start_time(child.pid) or 0)
        (tmp_path / "log").touch()
        assert "could not be read" in asyncio.run(stack_of(record))
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
