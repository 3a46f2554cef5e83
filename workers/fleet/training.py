"""What simulated training processes do together: reform on generations, step at a rate, break when a member is lost, finish.

A fleet sees all members of a job, so a job is one thing here. Each member speaks through its own node's agent; how far the job is known to the
control plane depends on which of them reach it. Nothing is computed: a step takes as long as the scenario says.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.protocol import (
    BrokenReport,
    FinishedReport,
    Generation,
    ProgressReport,
    ReformedReport,
    Report,
    Source,
    StepReport,
)
from workers.fleet import scenario
from workers.fleet.timeline import Timeline

_MOST_IDLE = 1_000
_LEAST_REAL_S = 0.25
"""Steps are told in bundles that take at least so long: nobody wants thousands of reports a second."""


@dataclass(eq=False)
class Rank:
    """A process that plays. ``say`` hands a report to its node's agent."""

    process: str
    say: Callable[[Report], None]
    is_ready: bool = False
    is_finished: bool = False


@dataclass
class Training:
    """One job. ``step`` is how many are done, ``saved`` the newest checkpoint from which a new crew would go on."""

    job: str
    how: scenario.Training
    timeline: Timeline
    ranks: dict[str, Rank] = field(default_factory=dict)
    generation: Generation | None = None
    step: int = 0
    saved: int = 0
    slowness: float = 1.0
    _crew: frozenset[str] = frozenset()
    """The members of the newest generation that was whole: they have the state."""
    _joined: set[str] = field(default_factory=set)
    _joining: set[str] = field(default_factory=set)
    _is_broken: bool = False

    # ------------------------------------------------------------ what nodes say

    def ready(self, rank: Rank) -> None:
        rank.is_ready = True
        self._join(rank.process)

    def hear(self, generation: Generation) -> None:
        """A generation that any member's node has been told of: each member joins when its own node is, see ``told``."""
        if self.generation is not None and generation.number <= self.generation.number:
            return
        self._resume(generation)
        self.generation, self._joined, self._joining, self._is_broken = generation, set(), set(), False

    def told(self, process: str, generation: Generation) -> None:
        """This member's node has been told of it."""
        self.hear(generation)
        self._join(process)

    def lost(self, process: str) -> None:
        """A process is no more. Those that it trained with notice at once."""
        self.ranks.pop(process, None)
        generation = self.generation
        if generation is None or generation.rank_of(process) is None or self._is_broken:
            return
        self._is_broken = True
        for rank in self._members():
            if rank.process in self._joined and not rank.is_finished:
                at = self.timeline.unix()
                rank.say(BrokenReport(self.job, generation.number, rank.process, "simulated: a peer closed the connection", at))

    def save(self) -> None:
        """All that is done is saved at once, if the job saves at all."""
        if self.how.checkpoint_every:
            self.saved = max(self.saved, self.step)

    # ------------------------------------------------------------ a generation's course

    def _members(self) -> list[Rank]:
        listed = self.generation.members if self.generation else ()
        return [self.ranks[member.process] for member in listed if member.process in self.ranks]

    def _resume(self, coming: Generation) -> None:
        """Whoever has no state gets it from those that have. If a part of it is lost, all go on from what was saved."""
        alive = self._crew & set(self.ranks)
        is_kept = alive == self._crew if self.how.is_sharded else bool(alive & {member.process for member in coming.members})
        if not self._crew or not is_kept:
            self._crew, self.step = frozenset(), self.saved

    def _join(self, process: str) -> None:
        rank, generation = self.ranks.get(process), self.generation
        if rank is None or generation is None or not rank.is_ready or process in self._joining:
            return
        number = generation.rank_of(process)
        if number is None:
            return
        self._joining.add(process)
        dice = random.Random(f"{generation.number}/{number}")  # noqa: S311  (a simulation's dice, the same in every run)
        self.timeline.after(self.how.reform.draw(dice), lambda: self._joins(rank, generation, number))

    def _joins(self, rank: Rank, generation: Generation, number: int) -> None:
        if self.generation is not generation or rank.process not in self.ranks:
            return
        self._joined.add(rank.process)
        source = Source.KEPT if rank.process in self._crew else self._source()
        rank.say(ReformedReport(self.job, generation.number, rank.process, number, self.step, source))
        if len(self._joined) == generation.world_size and not self._is_broken:
            self._crew = frozenset(self._joined)
            self._go_on(generation)

    def _source(self) -> Source:
        if self._crew:
            return Source.PEER
        return Source.STORE if self.step else Source.INITIAL

    def _go_on(self, generation: Generation) -> None:
        left = self.how.steps - self.step
        if left <= 0:
            self._finish(generation)
            return
        bundle = max(1, int(_LEAST_REAL_S * self.timeline.speed / self.how.step_seconds))
        count = min(left, bundle)
        seconds = count * self.how.step_seconds * self.slowness
        self.timeline.after(seconds, lambda: self._stepped(generation, count, seconds / count))

    def _stepped(self, generation: Generation, count: int, each_s: float) -> None:
        if self.generation is not generation or self._is_broken:
            return
        now = self.timeline.now
        steps = tuple(
            StepReport(
                self.step + index,
                self.timeline.real(each_s),
                self.timeline.unix(now - (count - 1 - index) * each_s),
                loss=round(4.0 / (1.0 + 0.01 * (self.step + index)), 6),
            )
            for index in range(count)
        )
        first = self.ranks.get(generation.members[0].process)
        if first is not None:
            first.say(ProgressReport(self.job, generation.number, steps))
        self.step += count
        every = self.how.checkpoint_every
        if every:
            self.saved = max(self.saved, self.step - self.step % every)
        self._go_on(generation)

    def _finish(self, generation: Generation) -> None:
        digest = hashlib.sha256(f"{self.job}/{self.how.steps}".encode()).hexdigest()
        for rank in self._members():
            rank.is_finished = True
            rank.say(FinishedReport(self.job, rank.process, generation.number, self.step, digest))


class Trainings:
    """All jobs of a fleet. ``usual`` is how they run unless their environment says otherwise."""

    def __init__(self, timeline: Timeline, usual: scenario.Training) -> None:
        self._timeline = timeline
        self._usual = usual
        self._jobs: dict[str, Training] = {}

    def of(self, job: str, environment: dict[str, str] | None = None) -> Training:
        if job not in self._jobs:
            self._make_room()
            self._jobs[job] = Training(job, _how(self._usual, environment or {}), self._timeline)
        return self._jobs[job]

    def __len__(self) -> int:
        return len(self._jobs)

    def _make_room(self) -> None:
        """A job that runs nowhere is kept for what it has saved, until there are too many such."""
        idle = [job for job, training in self._jobs.items() if not training.ranks]
        for job in idle[: max(0, len(idle) - _MOST_IDLE)]:
            del self._jobs[job]


def _how(usual: scenario.Training, environment: dict[str, str]) -> scenario.Training:
    """Values that cannot be read are the job's user's mistake: the usual ones stand in."""
    return scenario.Training(
        steps=int(_number(environment.get("SIM_STEPS"), usual.steps)),
        step_seconds=_number(environment.get("SIM_STEP_SECONDS"), usual.step_seconds),
        warm_up=usual.warm_up,
        reform=usual.reform,
        checkpoint_every=int(_number(environment.get("SIM_CHECKPOINT_EVERY"), usual.checkpoint_every)),
        is_sharded=usual.is_sharded,
    )


def _number(text: str | None, usual: float) -> float:
    try:
        found = float(text) if text else usual
    except ValueError:
        return usual
    return found if found >= 0 else usual
