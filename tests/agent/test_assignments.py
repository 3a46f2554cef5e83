"""Assignments on their way to the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from agent import assignments as module
from agent.assignments import Assignments
from everstep.protocol import Assignment, Directive, Launch, Process

LAUNCH = Launch(command=("true",), working_dir="/")


def assignment(job: str, *processes: str) -> Assignment:
    return Assignment(job=job, launch=LAUNCH, processes=tuple(Process(name) for name in processes))


def applied(scenario: Callable[[Assignments], Awaitable[None]], *, slow_s: float = 0.0, faults: int = 0) -> list[tuple[str, int]]:
    """What the supervisor was given: the job and how many processes."""
    seen: list[tuple[str, int]] = []
    tasks: set[asyncio.Future[None]] = set()

    async def apply(given: Assignment) -> None:
        nonlocal faults
        await asyncio.sleep(slow_s)
        if faults:
            faults -= 1
            message = "not now"
            raise OSError(message)
        seen.append((given.job, len(given.processes)))

    async def run() -> None:
        await scenario(Assignments(apply, lambda work: tasks.add(asyncio.ensure_future(work))))
        while pending := [task for task in tasks if not task.done()]:
            await asyncio.wait(pending)

    asyncio.run(run())
    return seen


def test_what_is_superseded_before_its_turn_is_never_applied():
    async def scenario(assignments: Assignments) -> None:
        assignments.offer(Directive(1, assignment("j", "a")))
        await asyncio.sleep(0.01)
        assignments.offer(Directive(2, assignment("j", "a", "b")))
        assignments.offer(Directive(3, assignment("j", "a", "b", "c")))

    assert applied(scenario, slow_s=0.05) == [("j", 1), ("j", 3)]


def test_an_older_directive_changes_nothing_and_jobs_do_not_wait_for_each_other():
    async def scenario(assignments: Assignments) -> None:
        assignments.offer(Directive(5, assignment("j", "a")))
        assignments.offer(Directive(4, assignment("j")))
        assignments.offer(Directive(3, assignment("k", "a", "b")))

    assert sorted(applied(scenario)) == [("j", 1), ("k", 2)]


def test_an_assignment_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.01)

    async def scenario(assignments: Assignments) -> None:
        assignments.offer(Directive(1, assignment("j", "a")))

    assert applied(scenario, faults=3) == [("j", 1)]


def test_only_jobs_that_are_not_listed_are_halted():
    async def scenario(assignments: Assignments) -> None:
        assignments.end_unlisted(["j", "k", "k"], {"j"})

    assert applied(scenario) == [("k", 0)]
