"""By when what runs on this node must have left. Whoever listens is told to save; what has not left at the deadline is ended.

A process that does not listen on the node's socket knows nothing of notices: it gets SIGTERM its job's grace before the deadline, or at once if
there is less left than that.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from everstep.notices import CutReport, Evacuation
from everstep.protocol import Report

from . import processes
from .processes import Record

_LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class Resident:
    """A process that runs here. ``listens``: it is connected, so it has heard."""

    record: Record
    grace_s: float
    listens: bool


class Evacuations:
    """``residents`` gives what runs here; ``clock`` tells Unix seconds. One event loop's."""

    def __init__(
        self,
        residents: Callable[[], Iterable[Resident]],
        report: Callable[[Report], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._residents = residents
        self._report = report
        self._clock = clock
        self._told: Evacuation | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked: set[str] = set()
        self._cut: set[str] = set()

    @property
    def standing(self) -> Evacuation | None:
        """None as long as nobody has to leave."""
        return None if self._told is None or self._told.is_over else self._told

    def hear(self, told: Evacuation) -> None:
        """The newest word; the one before it is void."""
        self._told = told
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if not told.is_over and told.deadline is not None:
            self._task = asyncio.get_running_loop().create_task(self._end_in_time(told.deadline, told.why))

    async def stop(self) -> None:
        """Nothing more is ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _end_in_time(self, deadline: float, why: str) -> None:
        """Also after the deadline, for as long as it stands: what comes up late must not stay."""
        while True:
            rest = deadline - self._clock()
            for resident in self._residents():
                if rest <= 0:
                    self._end(resident.record, why)
                elif not resident.listens and rest <= resident.grace_s and resident.record.process not in self._asked:
                    self._asked.add(resident.record.process)
                    processes.kill(resident.record, signal.SIGTERM)
            await asyncio.sleep(min(rest, _LOOK_EVERY_S) if rest > 0 else _LOOK_EVERY_S)

    def _end(self, record: Record, why: str) -> None:
        if not record.is_running():
            return  # it went by itself, and its end is told as that
        processes.kill(record, signal.SIGKILL)
        if record.process not in self._cut:
            self._cut.add(record.process)
            self._report(CutReport(record.job, record.process, why, self._clock()))
