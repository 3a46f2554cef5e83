"""What to do about one saved step in the object store. Pure: same snapshot, same actions.

Each step decides about itself alone, by what it sees of its namespace, so that no two of them ever wait for each other's rows; a step that has become
durable nudges those which are kept no longer because of it. Memory is not looked after here: the nodes do that, and are told what is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from everstep.tiers import Retention
from models.checkpoint.states import StepState
from workers.plans.decision import Decision, soonest
from workers.plans.durable_retention import DurableStep, next_by_age, verdicts

_RETRY = timedelta(seconds=15)
"""A removal that the store did not answer, and one that waits for an export, is tried again."""
_POLL = timedelta(minutes=10)
"""A nudge may be lost: this often a durable step looks by itself whether it is still kept."""


@dataclass(frozen=True)
class StepSeen:
    """``durable`` are all the namespace's steps that are kept and durable. ``is_in_memory``: some node holds a part of it.

    ``is_read``: an export reads it from the store now. ``is_store_out``: an outage of the store has been injected.
    """

    step: int
    state: StepState
    durable: tuple[DurableStep, ...] = ()
    retention: Retention = field(default_factory=Retention)
    is_in_memory: bool = False
    is_read: bool = False
    is_store_out: bool = False

    @property
    def is_durable(self) -> bool:
        return any(one.step == self.step for one in self.durable)


@dataclass(frozen=True)
class Retire:
    """No tier is to keep it any longer."""

    why: str


@dataclass(frozen=True)
class Leave:
    """It goes from the object store; the nodes still hold it, and keep it as their own retention says."""

    why: str


@dataclass(frozen=True)
class Remove:
    """What is left of it in the object store goes."""

    why: str


@dataclass(frozen=True)
class Nudge:
    """These steps are kept no longer, and are to see so themselves."""

    steps: tuple[int, ...]
    why: str


Action = Retire | Leave | Remove | Nudge


def plan(seen: StepSeen, now: datetime) -> Decision[Action]:
    """What to do about one step."""
    if seen.state is StepState.DROPPED:
        return Decision()
    if seen.state is StepState.DROPPING:
        return _remove(seen)
    if not seen.is_durable:
        return Decision()  # nothing of it is ours to keep or to remove
    going = verdicts(seen.durable, seen.retention, now)
    if seen.step in going:
        return _leave(seen, going[seen.step])
    nudges = (
        (Nudge(tuple(going), "a newer step is durable"),) if going and seen.step == max(one.step for one in seen.durable) else ()
    )
    return Decision(nudges, soonest(_POLL, next_by_age(seen.durable, seen.retention, now)))


def _remove(seen: StepSeen) -> Decision[Action]:
    if seen.is_store_out or seen.is_read:
        return Decision((), _RETRY)
    return Decision((Remove("it is kept no longer"),), _RETRY)


def _leave(seen: StepSeen, why: str) -> Decision[Action]:
    if not seen.is_in_memory:
        return Decision((Retire(f"The object store keeps it no longer: {why}."),), _RETRY)
    return Decision(() if seen.is_store_out or seen.is_read else (Leave(why),), _RETRY)
