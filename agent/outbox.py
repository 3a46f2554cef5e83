"""Reports on their way to the control plane: in order, each under a number of its own, for as long as nobody can be reached.

What must not be lost is kept whatever it costs (there is little of it: exits, readiness, reforms). Progress and log lines have no end, so
each job's and each process's are gathered in one report, and thinned when there are too many. Of the memory tier and of a job's saves the newest
word waits, and of a step's copies what became of each last.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from everstep.protocol import BrokenReport, LogReport, ProgressReport, Report, StepReport
from everstep.tiers import CopiesReport, SavedReport, TierReport

GATHER_S = 0.25
"""How long progress and log lines wait for company."""
MOST_STEPS = 20_000
"""Steps of one generation that are kept unsent. Past it neighbours are told as one, their seconds summed, so that goodput stays true."""
MOST_LOG = 16_384
"""Characters of one process's log that are kept unsent."""
_MOST_NOTE = 2_000
_BATCH_REPORTS = 200
_BATCH_STEPS = 2_000

Gathered = tuple[str, ...]
_PATIENT = ProgressReport | LogReport | CopiesReport | TierReport | SavedReport


@dataclass(frozen=True)
class Numbered:
    sequence: int
    report: Report


class Outbox:
    """Reports that the control plane has not confirmed. ``put`` never blocks; one batch is under way at a time."""

    def __init__(self) -> None:
        self._waiting: dict[int, Report] = {}
        self._gathered: dict[Gathered, int] = {}
        self._under_way: list[Numbered] = []
        self._keys = 0
        self._sequence = 0
        self._any = asyncio.Event()
        self._urgent = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def put(self, report: Report) -> None:
        key = _gathers(report)
        present = self._gathered.get(key) if key else None
        if present is not None:
            self._waiting[present] = _merged(self._waiting[present], report)
        else:
            self._keys += 1
            self._waiting[self._keys] = report
            if key:
                self._gathered[key] = self._keys
        self._any.set()
        self._empty.clear()
        if not isinstance(report, _PATIENT):
            self._urgent.set()

    async def wait(self) -> None:
        """Until there is something to send: at once when it is urgent, after a little gathering when it is not."""
        await self._any.wait()
        try:
            async with asyncio.timeout(GATHER_S):
                await self._urgent.wait()
        except TimeoutError:
            pass

    async def emptied(self) -> None:
        """Until everything has been confirmed, or given up."""
        await self._empty.wait()

    def batch(self) -> list[Numbered]:
        """What to send next, oldest first: the batch under way, or a new one. Empty: nothing is left."""
        if not self._under_way:
            self._fill()
        if not self._under_way:
            self._any.clear()
        return self._under_way

    def confirm(self) -> None:
        """The batch under way has been stored."""
        self._under_way = []
        self._note_emptiness()

    def drop(self, index: int) -> Report:
        """Gives up one report of the batch under way, which the control plane will never take."""
        report = self._under_way.pop(index).report
        self._note_emptiness()
        return report

    def split(self) -> bool:
        """Puts all but the first report of the batch back; False if there is only one. Numbers are kept in order: nothing else was sent."""
        first, rest = self._under_way[:1], self._under_way[1:]
        if not rest:
            return False
        self._under_way = first
        self._sequence = first[0].sequence
        front = {}
        for item in rest:
            self._keys += 1
            front[self._keys] = item.report
        self._waiting = front | self._waiting
        return True

    def _note_emptiness(self) -> None:
        if not len(self):
            self._empty.set()

    def _fill(self) -> None:
        self._urgent.clear()
        steps = 0
        while self._waiting and len(self._under_way) < _BATCH_REPORTS and steps < _BATCH_STEPS:
            key = next(iter(self._waiting))
            report = self._waiting.pop(key)
            if isinstance(report, ProgressReport) and len(report.steps) > _BATCH_STEPS:
                later = replace(report, steps=report.steps[_BATCH_STEPS:])
                report = replace(report, steps=report.steps[:_BATCH_STEPS])
                self._waiting = {key: later} | self._waiting
            else:
                self._gathered = {name: place for name, place in self._gathered.items() if place != key}
            steps += len(report.steps) if isinstance(report, ProgressReport) else 0
            self._sequence += 1
            self._under_way.append(Numbered(self._sequence, report))


def _gathers(report: Report) -> Gathered | None:
    """Under which name a report is gathered with its like; None for one that stands alone."""
    if isinstance(report, ProgressReport):
        return ("progress", report.job, str(report.generation))
    if isinstance(report, LogReport):
        return ("log", report.process)
    if isinstance(report, BrokenReport):
        return ("broken", report.process, str(report.generation))
    if isinstance(report, CopiesReport):
        return ("copies", report.namespace, str(report.step), report.save)
    if isinstance(report, SavedReport):
        return ("saved", report.job)
    return ("tier",) if isinstance(report, TierReport) else None


def _merged(older: Report, newer: Report) -> Report:
    if isinstance(older, ProgressReport) and isinstance(newer, ProgressReport):
        return replace(older, steps=_thinned(older.steps + newer.steps))
    if isinstance(older, LogReport) and isinstance(newer, LogReport):
        text = older.text + newer.text
        kept = text[-MOST_LOG:]
        cut = len(text[:-MOST_LOG].encode(errors="replace")) if len(text) > MOST_LOG else 0
        return replace(older, text=kept, skipped=older.skipped + newer.skipped + cut)
    if isinstance(older, CopiesReport) and isinstance(newer, CopiesReport):
        copies = {copy.index: copy for copy in (*older.copies, *newer.copies)}
        written_at = max(older.written_at, newer.written_at)
        return replace(newer, copies=tuple(copies.values()), world_size=newer.world_size or older.world_size, written_at=written_at)
    if isinstance(older, SavedReport) and isinstance(newer, SavedReport):
        return replace(newer, why=newer.why or older.why)
    if isinstance(older, TierReport) and isinstance(newer, TierReport):
        return replace(newer, note=_joined(older.note, newer.note))
    return older  # a collective breaks once a generation: the first word about it counts


def _joined(older: str | None, newer: str | None) -> str | None:
    """Notes tell of what was evicted, each of something else."""
    if not older or not newer:
        return older or newer
    return older if newer in older else f"{older}; {newer}"[-_MOST_NOTE:]


def _thinned(steps: tuple[StepReport, ...]) -> tuple[StepReport, ...]:
    if len(steps) <= MOST_STEPS:
        return steps
    half = MOST_STEPS // 2
    pairs = zip(steps[0:half:2], steps[1:half:2], strict=True)
    return (*(_as_one(first, second) for first, second in pairs), *steps[half:])


def _as_one(first: StepReport, second: StepReport) -> StepReport:
    return replace(second, seconds=first.seconds + second.seconds, stall_s=first.stall_s + second.stall_s)
