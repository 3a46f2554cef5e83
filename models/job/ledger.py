"""Where the time of a job's accelerators went: each moment of each is booked to exactly one account. Pure.

A job's course is one row of spans, each with an account, without a gap (``course``). Accelerators are held node by node; while a node has a rank of
the membership in force its time is booked as the course says, otherwise it warms up or stands by. So the accounts sum to the time held, in whole
microseconds, whatever the history says: a time that cannot be is cut to what is left, never counted twice.

Nothing is booked for good. Facts are kept as sums and bounds that do not depend on the order in which they were told, and the accounts follow from
all of them: a report that comes late moves time from one account to another, and one that comes twice changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

Micros = int
"""Microseconds; as a time, since 1970."""


class Account(StrEnum):
    """``spare`` is what accelerators without a rank do while others train; ``idle`` what nothing is told of, and what follows the job's end."""

    PRODUCTIVE = "productive"
    CHECKPOINT_STALL = "checkpoint_stall"
    DETECT = "detect"
    DECIDE = "decide"
    REFORM = "reform"
    TRANSFER = "transfer"
    REDONE_WORK = "redone_work"
    RESCALE = "rescale"
    WAITING = "waiting_for_capacity"
    INITIALISING = "initialising"
    SPARE = "spare"
    IDLE = "idle"


_A = Account
ACCOUNTS = tuple(Account)
_PLACE = {account: place for place, account in enumerate(ACCOUNTS)}


@dataclass(frozen=True)
class Done:
    """A committed step: it took so long, ``stall`` of it waiting for a save to have read the state."""

    ended: Micros
    length: Micros
    stall: Micros = 0


@dataclass(frozen=True)
class Tally:
    """The steps of one membership that nobody had done before: sums and bounds, the same in whichever order they were told."""

    steps: int = 0
    trained: Micros = 0
    stalled: Micros = 0
    fresh: Micros | None = None
    """When the first of them began."""
    last: Micros | None = None
    """When the last of them ended."""

    @classmethod
    def of(cls, steps: Iterable[Done]) -> Tally:
        found = cls()
        for step in steps:
            stall = min(step.stall, step.length)
            found += cls(1, step.length - stall, stall, step.ended - step.length, step.ended)
        return found

    def __add__(self, other: Tally) -> Tally:
        fresh = [at for at in (self.fresh, other.fresh) if at is not None]
        last = [at for at in (self.last, other.last) if at is not None]
        return Tally(
            self.steps + other.steps,
            self.trained + other.trained,
            self.stalled + other.stalled,
            min(fresh, default=None),
            max(last, default=None),
        )

    @property
    def usual(self) -> Micros:
        """How long one of them takes; 0 if none is known."""
        return (self.trained + self.stalled) // self.steps if self.steps else 0


@dataclass(frozen=True)
class Holding:
    """A node that the job has from ``since`` on, with so many accelerators, or 1 where there are none."""

    node: str
    since: Micros
    until: Micros | None = None
    weight: int = 1


@dataclass(frozen=True)
class Membership:
    """A generation. ``asked`` and ``complete`` are when the first and the last of the processes was asked for that were not in the one before.

    ``evidence`` is None for one that was planned. ``is_anew``: none of its processes was in the one before. ``is_rescale``: planned, and of
    another size. ``is_kept``: the step that its cause broke was finished by it, and not done again. ``resumed`` is when all its members had their state.
    """

    nodes: frozenset[str]
    decided: Micros
    evidence: Micros | None = None
    asked: Micros | None = None
    complete: Micros | None = None
    grouped: Micros | None = None
    resumed: Micros | None = None
    is_anew: bool = False
    is_rescale: bool = False
    is_kept: bool = False
    steps_lost: int = 0
    tally: Tally = Tally()

    @property
    def onset(self) -> Micros:
        """Until when the one before went on."""
        if self.evidence is not None:
            return min(self.evidence, self.decided)
        return min(self.asked, self.decided) if self.is_anew and self.asked is not None else self.decided


@dataclass(frozen=True)
class History:
    """``complete`` is when a job that has had no membership yet had its last node; None while it still waits for some. ``ended`` is the job's end."""

    holdings: tuple[Holding, ...] = ()
    memberships: tuple[Membership, ...] = ()
    complete: Micros | None = None
    ended: Micros | None = None


@dataclass(frozen=True)
class Span:
    since: Micros
    until: Micros
    account: Account


@dataclass(frozen=True)
class Books:
    """Microseconds of accelerators by account, and ``elapsed`` of the job by account, from its first node on, however many it had."""

    accounts: tuple[Micros, ...] = (0,) * len(ACCOUNTS)
    elapsed: tuple[Micros, ...] = (0,) * len(ACCOUNTS)

    def __add__(self, other: Books) -> Books:
        return Books(_plus(self.accounts, other.accounts), _plus(self.elapsed, other.elapsed))

    def of(self, account: Account) -> Micros:
        return self.accounts[_PLACE[account]]

    @property
    def held(self) -> Micros:
        return sum(self.accounts)

    @property
    def goodput(self) -> float | None:
        """The productive share of the time of accelerators that had, or were to have, a rank; None before there were any."""
        ranked = self.held - self.of(_A.SPARE)
        return self.of(_A.PRODUCTIVE) / ranked if ranked else None

    @property
    def productive_elapsed(self) -> Micros:
        return self.elapsed[_PLACE[_A.PRODUCTIVE]]


def book(history: History, now: Micros) -> Books:
    """All accounts at the moment ``now``."""
    holdings = [_cut(one, now) for one in history.holdings if one.since < now]
    if not holdings:
        return Books()
    start, end = min(one.since for one in holdings), max(one.until for one in holdings if one.until is not None)
    spans = course(history, start, end, now)
    sums = _Sums(spans)
    totals = [0] * len(ACCOUNTS)
    reigns = _Reigns(history.memberships, history.ended)
    for one in holdings:
        for since, until, account in reigns.pieces(one, end):
            part = sums.between(since, until) if account is None else _only(account, until - since)
            for place, length in enumerate(part):
                totals[place] += one.weight * length
    return Books(tuple(totals), tuple(sums.between(start, end if history.ended is None else max(start, min(end, history.ended)))))


# ------------------------------------------------------------------------------------------------------------ the course


class _Tape:
    """Spans, laid one after the other. What would go back in time, or past the end, is cut."""

    def __init__(self, start: Micros, end: Micros) -> None:
        self.at, self.end = start, end
        self.spans: list[Span] = []

    def run(self, until: Micros | None, account: Account, *, limit: Micros | None = None) -> None:
        """Up to a time, but no further than a limit; None: there is none such yet, so nothing is laid."""
        if until is None:
            return
        until = min(until, self.end, self.end if limit is None else limit)
        if until > self.at:
            self.spans.append(Span(self.at, until, account))
            self.at = until


def course(history: History, start: Micros, end: Micros, now: Micros) -> list[Span]:
    """What the job did from ``start`` to ``end``, in order and without a gap. ``now`` is later if its processes have left already."""
    tape = _Tape(start, end)
    ended = end if history.ended is None else history.ended
    memberships = history.memberships
    if not memberships:
        tape.run(ended if history.complete is None else history.complete, _A.WAITING, limit=ended)
        tape.run(ended, _A.INITIALISING)
    else:
        tape.run(memberships[0].complete, _A.WAITING, limit=memberships[0].decided)
        tape.run(memberships[0].decided, _A.INITIALISING)
    is_over = history.ended is not None or end < now
    for place, (member, after) in enumerate(pairwise((*memberships, None))):
        if member is not None:
            _reign(tape, member, after, ended=ended, is_first=place == 0, is_over=is_over)
    tape.run(end, _A.IDLE)
    return tape.spans


def _reign(tape: _Tape, member: Membership, after: Membership | None, *, ended: Micros, is_first: bool, is_over: bool) -> None:
    onset = ended if after is None else min(after.onset, ended)
    _form(tape, member, onset, is_first=is_first)
    if member.resumed is not None:
        _train(tape, member, onset)
        _break_off(tape, member, after, onset, is_over=is_over)
    if after is None:
        return
    if after.complete is not None and after.complete > onset:
        tape.run(after.complete, _A.WAITING, limit=min(after.decided, ended))
        tape.run(after.decided, _A.INITIALISING, limit=ended)
    tape.run(after.decided, _A.DECIDE, limit=ended)


def _form(tape: _Tape, member: Membership, onset: Micros, *, is_first: bool) -> None:
    """From the decision to the moment in which everybody has the state; one that never forms spends all its time on it."""
    whole = _A.INITIALISING if is_first else _A.RESCALE if member.is_rescale else None
    tape.run(member.grouped, whole or _A.REFORM, limit=onset)
    is_moved = member.grouped is not None
    tape.run(member.resumed, whole or (_A.TRANSFER if is_moved else _A.REFORM), limit=onset)
    if member.resumed is None:
        tape.run(onset, whole or (_A.TRANSFER if is_moved else _A.REFORM))


def _train(tape: _Tape, member: Membership, onset: Micros) -> None:
    """Steps, from the first to the end of the last that is known."""
    tally = member.tally
    if member.steps_lost:
        tape.run(onset if tally.fresh is None else tally.fresh, _A.REDONE_WORK, limit=onset)
    if tally.last is None:
        return
    until = min(tally.last, onset)
    tape.run(tape.at + tally.stalled, _A.CHECKPOINT_STALL, limit=until)
    tape.run(tape.at + tally.trained, _A.PRODUCTIVE, limit=until)
    tape.run(until, _A.IDLE)


def _break_off(tape: _Tape, member: Membership, after: Membership | None, onset: Micros, *, is_over: bool) -> None:
    """What follows the last step that is known: one that is under way, or was broken; and then whatever it took to notice."""
    usual = member.tally.usual
    if after is None:
        if not is_over:
            tape.run(tape.at + usual, _A.PRODUCTIVE, limit=onset)
        tape.run(onset, _A.IDLE)
        return
    tape.run(tape.at + usual, _A.PRODUCTIVE if after.is_kept else _A.REDONE_WORK, limit=onset)
    tape.run(onset, _A.DETECT if after.evidence is not None else _A.IDLE)


# ------------------------------------------------------------------------------------------------------------ who it is booked to


class _Reigns:
    """Which membership was in force when."""

    def __init__(self, memberships: Sequence[Membership], ended: Micros | None) -> None:
        self._memberships, self._ended = memberships, ended
        self._starts: list[Micros] = []
        for one in memberships:
            self._starts.append(max([one.decided, *self._starts[-1:]]))

    def pieces(self, holding: Holding, end: Micros) -> Iterable[tuple[Micros, Micros, Account | None]]:
        """A holding, cut where a membership ends and the next begins. None: it is booked as the course says."""
        last = end if self._ended is None else max(holding.since, min(self._ended, end))
        until = holding.until if holding.until is not None else end
        place, at = bisect_right(self._starts, holding.since), holding.since
        while at < min(until, last):
            after = self._memberships[place] if place < len(self._memberships) else None
            edge = min(until, last, self._starts[place] if after is not None else until)
            if edge > at:
                yield at, edge, self._booked(holding, place, after)
            at, place = max(at, edge), place + 1
        if until > at:
            yield at, until, _A.IDLE

    def _booked(self, holding: Holding, place: int, after: Membership | None) -> Account | None:
        if place == 0 or holding.node in self._memberships[place - 1].nodes:
            return None
        if after is not None and holding.node in after.nodes and (after.is_rescale or holding.since >= after.onset):
            return _A.INITIALISING
        return _A.SPARE


class _Sums:
    """How much of each account lies between two times of a course."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._starts = [span.since for span in spans]
        self._before = [[0] * len(ACCOUNTS)]
        for span in spans:
            sums = list(self._before[-1])
            sums[_PLACE[span.account]] += span.until - span.since
            self._before.append(sums)

    def between(self, since: Micros, until: Micros) -> Sequence[Micros]:
        return [after - before for before, after in zip(self._until(since), self._until(until), strict=True)]

    def _until(self, at: Micros) -> Sequence[Micros]:
        place = bisect_right(self._starts, at)
        if place == 0:
            return self._before[0]
        span = self._spans[place - 1]
        sums = list(self._before[place - 1])
        sums[_PLACE[span.account]] += min(at, span.until) - span.since
        return sums


def _cut(holding: Holding, now: Micros) -> Holding:
    until = now if holding.until is None else min(holding.until, now)
    return Holding(holding.node, holding.since, max(until, holding.since), holding.weight)


def _only(account: Account, length: Micros) -> Sequence[Micros]:
    return [length if one is account else 0 for one in ACCOUNTS]


def _plus(one: Sequence[Micros], other: Sequence[Micros]) -> tuple[Micros, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))
