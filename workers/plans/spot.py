"""What to do about one notice of a provider that it takes a node, or may. Pure: same snapshot, same actions.

The node's place is filled by the cluster's plan as soon as the notice stands. Here the node itself is let go: when nothing is left on it, and at the
deadline in any case. What it holds in memory can be fetched for a moment after its last process has left, and a notice that is taken back in that moment
costs nobody a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from models.node.states import NodeState
from models.spot.states import NOTICE, NoticeKind, NoticeState
from workers.plans.decision import Decision

HELD_FOR = timedelta(seconds=20)
"""How long a node stays after the notice, and after its last process has ended; not beyond the deadline."""
LOOK_AGAIN = timedelta(seconds=1)
"""While a node is left: the nudge of what ends there, or of another reason for leaving that has ended, may be lost."""
_WATCHED_EVERY = timedelta(seconds=15)
_GOING = (NodeState.RELEASING, NodeState.GONE)


@dataclass(frozen=True)
class NoticeSeen:
    """``is_told``: its agent has not taken it back. ``was_struck``: processes were still there when the node was lost.

    ``emptied_at`` is when the last process that ran there after the notice ended, or when the notice came, if none did.
    """

    state: NoticeState
    kind: NoticeKind
    deadline: datetime | None = None
    is_told: bool = True
    node_state: NodeState = NodeState.READY
    is_wanted: bool = True
    is_busy: bool = False
    emptied_at: datetime | None = None
    was_lost: bool = False
    was_struck: bool = False
    leaves_on_rebalance: bool = False
    is_left: bool = True
    """Whether what runs on the node is told to leave, for whatever reason: one that has ended may have taken ours with it."""


@dataclass(frozen=True)
class Evacuate:
    why: str


@dataclass(frozen=True)
class TellAgain:
    """What runs on the node must leave for this notice's sake still."""

    why: str


@dataclass(frozen=True)
class Release:
    """The node is let go, and the notice is over."""

    new: NoticeState
    why: str


@dataclass(frozen=True)
class Conclude:
    new: NoticeState
    why: str


Action = Evacuate | TellAgain | Release | Conclude


def plan(seen: NoticeSeen, now: datetime) -> Decision[Action]:
    """What to do about one notice."""
    if NOTICE.is_terminal(seen.state):
        return Decision()
    if seen.node_state in _GOING:
        return Decision((_gone(seen),))
    if not seen.is_told:
        return Decision((Conclude(NoticeState.WITHDRAWN, "The provider has taken it back: the node stays."),))
    if seen.state is NoticeState.ANNOUNCED:
        if seen.kind is NoticeKind.REBALANCE and not seen.leaves_on_rebalance:
            return Decision((), _WATCHED_EVERY)
        return Decision((Evacuate("What runs on the node was told to leave."),), timedelta(0))
    return _evacuating(seen, now)


def _evacuating(seen: NoticeSeen, now: datetime) -> Decision[Action]:
    left = None if seen.deadline is None else seen.deadline - now
    if left is not None and left <= timedelta(0):
        if seen.is_busy:
            return Decision((Release(NoticeState.LOST, "The provider takes the host now; work was still on it."),))
        return Decision((Release(NoticeState.EVACUATED, "The provider takes the host now; nothing was left on it."),))
    if not seen.is_left and seen.is_wanted:
        return Decision((TellAgain("What runs on the node has still to leave."),), timedelta(0))
    rest = timedelta(0) if seen.emptied_at is None else seen.emptied_at + HELD_FOR - now
    if not seen.is_busy and rest <= timedelta(0):
        return Decision((Release(NoticeState.EVACUATED, "The provider takes the host, and nothing is left on it."),))
    return Decision((), LOOK_AGAIN if left is None else min(LOOK_AGAIN, left))


def _gone(seen: NoticeSeen) -> Conclude:
    """The node went before it was let go for this notice's sake."""
    if not seen.was_lost:
        return Conclude(NoticeState.WITHDRAWN, "The node was let go for another reason.")
    if seen.state is NoticeState.EVACUATING and not seen.was_struck:
        return Conclude(NoticeState.EVACUATED, "The host was taken; nothing was left on it.")
    return Conclude(NoticeState.LOST, "The host was taken with work on it." if seen.was_struck else "The host was taken.")
