"""What agents tell of processes that live and yet are no use to their jobs, or of numbers that look wrong. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.wire import Wire

HANG_AFTER_VARIABLE = "EVERSTEP_HANG_AFTER_S"
"""The shortest time without a step after which a process may be said to hang, in seconds: ``hang_after`` of the job file."""
HANG_AFTER_S = 20.0
"""As long as the job file says nothing else."""


class Hung(StrEnum):
    """What a process does that makes no progress."""

    COMPUTING = "computing"
    """It is in none of our collectives: it is what the others wait for, if they do."""
    WAITING = "waiting"
    """It waits for its peers in a collective: by itself it is healthy."""
    FROZEN = "frozen"
    """Not even its watcher speaks: it is stopped, or code that holds the interpreter's lock does not come back."""


@dataclass(frozen=True)
class HungReport(Wire):
    """No progress for ``seconds``, which is more than ``limit_s``. Told again whenever ``seconds`` has doubled.

    ``generation`` and ``step`` are where the process stood (generation 0: it had not joined any); ``stack`` is where its threads are, or why nobody
    can tell.
    """

    job: str
    process: str
    generation: int
    step: int
    how: Hung
    seconds: float
    limit_s: float
    stack: str = ""
    kind: str = "hung"


@dataclass(frozen=True)
class StragglerReport(Wire):
    """A rank has needed ``own_s`` for its own part of a step, the others ``others_s`` on average, in most of the last ``steps`` steps.

    ``has_caught_up``: that was told once of this generation, and is not so any more.
    """

    job: str
    process: str
    generation: int
    step: int
    own_s: float
    others_s: float
    steps: int
    has_caught_up: bool = False
    kind: str = "straggler"


@dataclass(frozen=True)
class AnomalyReport(Wire):
    """The loss of a step was no number, or far from the losses before it. ``action`` is what the ranks do about it: stop, rollback or skip."""

    job: str
    process: str
    generation: int
    step: int
    what: str
    action: str
    words: str
    kind: str = "anomaly"
