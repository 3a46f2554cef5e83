"""Hands assignments to the supervisor: the newest of each job, one at a time, again and again until it has taken it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from everstep.protocol import Assignment, Directive, Launch

log = logging.getLogger(__name__)

AGAIN_S = 1.0


class Assignments:
    """``apply`` may take its time; the stream is read on meanwhile, and what is superseded before its turn is never applied."""

    def __init__(self, apply: Callable[[Assignment], Awaitable[None]], spawn: Callable[[Awaitable[None]], object]) -> None:
        self._apply = apply
        self._spawn = spawn
        self._newest: dict[str, int] = {}
        self._waiting: dict[str, Assignment] = {}
        self._at_work: set[str] = set()

    def offer(self, directive: Directive) -> None:
        """Takes a directive unless a newer one of its job is known."""
        job = directive.assignment.job
        if directive.id < self._newest.get(job, 0):
            return
        self._newest[job] = directive.id
        self._put(directive.assignment)

    def end_unlisted(self, running: Iterable[str], listed: set[str]) -> None:
        """Halts the jobs that run here although the control plane, asked for all that should, does not name them."""
        for job in set(running) - listed:
            log.warning("job %s is not to run on this node any more; ending it", job)
            self._newest.pop(job, None)
            self._put(Assignment(job=job, launch=Launch(command=(), working_dir="")))

    def _put(self, assignment: Assignment) -> None:
        self._waiting[assignment.job] = assignment
        if assignment.job not in self._at_work:
            self._at_work.add(assignment.job)
            self._spawn(self._work(assignment.job))

    async def _work(self, job: str) -> None:
        try:
            while (assignment := self._waiting.pop(job, None)) is not None:
                try:
                    await self._apply(assignment)
                except Exception:
                    log.exception("the assignment of job %s could not be applied; trying again", job)
                    await asyncio.sleep(AGAIN_S)
                    self._waiting.setdefault(job, assignment)
        finally:
            self._at_work.discard(job)
