"""When repairs are held back: too many nodes of a group have trouble at once, or the control plane itself may be what is wrong. Pure.

A host of which its provider says that it is dead needs no protection: it is replaced whatever else is going on, and all at once. What is
held back are replacements and reboots that rest on what agents, peers and silence say, for all of these look alike when the network between
the nodes and us fails, or a driver is bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from workers.plans.decision import Decision

_LEAST = 2
"""One node alone is never held back."""
_LEAST_OF_ALL = 3
_MOST_OF_ALL = 0.5
LOOK_AGAIN = timedelta(seconds=5)


@dataclass(frozen=True)
class Limits:
    """``share``: of a group's target, held back above it. ``window``: for how long one that was given up counts, and an operator's word holds.

    ``patience``: a hold that lasts longer lets one node of the group be repaired at a time.
    """

    share: float = 0.3
    window: timedelta = timedelta(minutes=10)
    patience: timedelta = timedelta(hours=1)
    remind: timedelta = timedelta(minutes=30)


@dataclass(frozen=True)
class TroubleSeen:
    """As ``models.condition.queries.Trouble``; ``held_since`` is when an open hold began, ``resumed_until`` until when nothing is held."""

    target: int
    places: int = 0
    healing: int = 0
    all_suspects: int = 0
    all_serving: int = 0
    held_since: datetime | None = None
    resumed_until: datetime | None = None


@dataclass(frozen=True)
class Brake:
    """``why`` is why repairs are held back now, None if they are not. ``is_new``: nobody has been told of it yet."""

    why: str | None = None
    is_new: bool = False


@dataclass(frozen=True)
class HoldRepairs:
    """The group's repairs are held back from now on."""

    why: str


OPEN = Brake()


def brake(seen: TroubleSeen, limits: Limits, now: datetime) -> Brake:
    """Whether a repair on suspicion may begin now."""
    why = _trouble(seen, limits, now)
    if why is None:
        return OPEN
    if seen.held_since is not None and now >= seen.held_since + limits.patience and not seen.healing:
        return OPEN
    return Brake(why, is_new=seen.held_since is None)


def _trouble(seen: TroubleSeen, limits: Limits, now: datetime) -> str | None:
    if seen.resumed_until is not None and now < seen.resumed_until:
        return None
    if seen.all_suspects >= _LEAST_OF_ALL and seen.all_suspects > _MOST_OF_ALL * seen.all_serving:
        return (
            f"{seen.all_suspects} of all {seen.all_serving} nodes are silent at once while their providers do not say that they are dead: "
            "the control plane suspects itself. Nothing is repaired on suspicion until they are heard again or ResumeRepairs is called."
        )
    if seen.places >= _LEAST and seen.places > limits.share * seen.target:
        return (
            f"{seen.places} of {seen.target} nodes of the group have trouble at once, more than {limits.share:.0%}. "
            "Nothing is repaired on suspicion until there are fewer or ResumeRepairs is called."
        )
    return None


@dataclass(frozen=True)
class HoldSeen:
    trouble: TroubleSeen
    told_at: datetime
    limits: Limits
    is_over: bool = False
    """Ended by somebody: those who waited are to look."""
    group_is_going: bool = False


@dataclass(frozen=True)
class End:
    why: str


@dataclass(frozen=True)
class Remind:
    why: str


@dataclass(frozen=True)
class LetGo:
    """Those that waited are to look again."""

    why: str


Action = End | Remind | LetGo


def plan(seen: HoldSeen, now: datetime) -> Decision[Action]:
    """What to do about one hold."""
    if seen.is_over:
        return Decision((LetGo("The hold is over."),))
    why = None if seen.group_is_going else _trouble(seen.trouble, seen.limits, now)
    if why is None:
        return Decision((End("Fewer nodes have trouble now: repairs go on."), LetGo("The hold is over.")))
    reminder = (Remind(why),) if now >= seen.told_at + seen.limits.remind else ()
    since = seen.trouble.held_since
    is_patient = since is None or now < since + seen.limits.patience
    trickle = () if is_patient or seen.trouble.healing else (LetGo("One node at a time is repaired now."),)
    return Decision((*reminder, *trickle), LOOK_AGAIN)
