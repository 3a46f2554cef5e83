"""What to conclude about one node. Pure: same snapshot, same actions.

Unreachable is not dead. A silent node is only suspected: its work goes on, and nobody replaces it, until a second witness confirms the loss
(its provider, or its processes' peers while its stream is closed) or its patience runs out. When too many are silent at once, only their
provider's word counts: see ``workers.plans.brake``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from models.ids import GroupId
from models.node.states import HostWord, NodeState, Restart
from workers.plans import brake
from workers.plans.brake import Brake, HoldRepairs
from workers.plans.decision import Decision, soonest


@dataclass(frozen=True)
class Patience:
    """How long a node may take, or be silent, before something is concluded from it."""

    stream: timedelta = timedelta(seconds=1)
    beats: timedelta = timedelta(seconds=6)
    loss: timedelta = timedelta(seconds=30)
    cut_off: timedelta = timedelta(minutes=15)
    """Of silence, where its provider or its jobs say that it lives."""
    boot: timedelta = timedelta(minutes=10)
    checks: timedelta = timedelta(hours=1)
    drain: timedelta = timedelta(seconds=10)
    reboot: timedelta = timedelta(minutes=15)


@dataclass(frozen=True)
class NodeSeen:
    """``given_up`` counts the node's processes that their jobs have given up since its stream closed, on their peers' word.

    ``heard_since`` is when the agents' door began to listen without a gap: nobody is silent while nobody listens. None if that is not known.
    """

    state: NodeState
    state_since: datetime
    is_wanted: bool = True
    is_busy: bool = False
    last_seen: datetime | None = None
    heard_since: datetime | None = None
    stream_lost_at: datetime | None = None
    lifecycle_done: bool = False
    lifecycle_failure: str | None = None
    host_word: HostWord | None = None
    host_word_at: datetime | None = None
    given_up: int = 0
    work_goes_on: bool | None = None
    """Whether steps are still committed that take a process of this node; None where it has work and nobody could tell."""
    is_recovered: bool = True
    """Whether the cluster lets us act on a loss (NodeRecovery Automatic)."""
    restart: Restart | None = None
    restart_drain: timedelta | None = None
    """How long jobs have to leave before it; None is the usual patience."""
    restart_is_forced: bool = True
    move_to: GroupId | None = None
    move_is_possible: bool = True
    """Whether the group that the node is to go to still takes nodes."""
    brake: Brake = brake.OPEN
    """Whether so many have trouble at once that nobody is given up on suspicion."""
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class Move:
    new: NodeState
    why: str


@dataclass(frozen=True)
class Lose:
    """The loss is confirmed. ``is_certain``: by its provider, or by nobody's having any doubt."""

    why: str
    is_certain: bool = True


@dataclass(frozen=True)
class Fail:
    """The host never came to serve."""

    why: str


@dataclass(frozen=True)
class StartAnew:
    """The node is drained for its restart."""

    why: str


@dataclass(frozen=True)
class DropRestart:
    """Its jobs did not leave, and are not to be disturbed."""

    why: str


@dataclass(frozen=True)
class HandOver:
    """The node is drained for its move: it belongs to that group from now on."""

    group: GroupId
    why: str


@dataclass(frozen=True)
class WithdrawMove:
    why: str


Action = Move | Lose | Fail | StartAnew | DropRestart | HandOver | WithdrawMove | HoldRepairs


def plan(seen: NodeSeen, now: datetime) -> Decision[Action]:
    """What to conclude about one node."""
    if seen.state in (NodeState.RELEASING, NodeState.GONE):
        return Decision()
    if not seen.is_wanted:
        return _leave(seen, now)
    if seen.move_to is not None and not seen.move_is_possible:
        return Decision((WithdrawMove("The instance group that it was to move to is going."),), timedelta(0))
    return _RULES[seen.state](seen, now)


def _leave(seen: NodeSeen, now: datetime) -> Decision[Action]:
    """A node that serves is drained first, so that its jobs can move away; the rest is released at once."""
    if seen.state in (NodeState.READY, NodeState.SUSPECT):
        return Decision((Move(NodeState.DRAINING, "The node is no longer wanted."),), timedelta(0))
    if seen.state in (NodeState.DRAINING, NodeState.DETACHING):
        rest = _busy_for(seen, seen.patience.drain, now)
        if rest > timedelta(0):
            return Decision((), min(rest, timedelta(seconds=1)))
        return Decision((Move(NodeState.RELEASING, _drained(seen)),))
    return Decision((Move(NodeState.RELEASING, "The node is no longer wanted."),))


def _busy_for(seen: NodeSeen, patience: timedelta, now: datetime) -> timedelta:
    """For how long its jobs are still waited for; nothing once they have left, or their time is over."""
    return max(timedelta(0), seen.state_since + patience - now) if seen.is_busy else timedelta(0)


def _drained(seen: NodeSeen) -> str:
    return "Its jobs did not leave in time." if seen.is_busy else "The node is drained."


def _wait(_seen: NodeSeen, _now: datetime) -> Decision[Action]:
    return Decision()


def _booting(seen: NodeSeen, now: datetime) -> Decision[Action]:
    if _is_dead(seen):
        return Decision((Fail("The instance died before its agent registered."),))
    rest = seen.state_since + seen.patience.boot - now
    if rest <= timedelta(0):
        return Decision((Fail(f"The agent did not register within {_seconds(seen.patience.boot)}."),))
    return Decision((), rest)


def _checking(seen: NodeSeen, now: datetime) -> Decision[Action]:
    if seen.lifecycle_done:
        return Decision((Move(NodeState.READY, "The node's checks passed."),))
    if seen.lifecycle_failure is not None:
        return Decision((Fail(seen.lifecycle_failure),))
    if _is_dead(seen):
        return Decision((Fail("The instance died during its checks."),))
    silent = seen.patience.loss - _silence(seen, now)
    rest = seen.state_since + seen.patience.checks - now
    if silent <= timedelta(0):
        return Decision((Fail(f"The agent fell silent for {_seconds(seen.patience.loss)} during its checks."),))
    if rest <= timedelta(0):
        return Decision((Fail(f"The checks took longer than {_seconds(seen.patience.checks)}."),))
    return Decision((), soonest(silent, rest))


def _ready(seen: NodeSeen, now: datetime) -> Decision[Action]:
    """A closed stream is suspicious after a moment, or at once if peers complain; missing beats after three of them."""
    if seen.restart is not None:
        return Decision((Move(NodeState.DRAINING, f"A {seen.restart} was requested."),), timedelta(0))
    if seen.move_to is not None:
        return Decision((Move(NodeState.DETACHING, "A move was requested."),), timedelta(0))
    if seen.stream_lost_at is not None:
        rest = seen.patience.stream - (now - seen.stream_lost_at)
        if rest <= timedelta(0) or seen.given_up:
            return Decision((Move(NodeState.SUSPECT, "Its agent's stream has closed."),), timedelta(0))
        return Decision((), rest)
    if seen.last_seen is not None and _silence(seen, now) > seen.patience.beats:
        return Decision((Move(NodeState.SUSPECT, f"Its agent has been silent for {_seconds(_silence(seen, now))}."),), timedelta(0))
    return Decision()


def _suspect(seen: NodeSeen, now: datetime) -> Decision[Action]:
    """A restart may be what heals it; a move waits until it is heard again."""
    if seen.restart is not None:
        return Decision((Move(NodeState.DRAINING, f"A {seen.restart} was requested."),), timedelta(0))
    if _is_heard(seen, now):
        return Decision((Move(NodeState.READY, "Its agent was heard again."),))
    certain, suspected = _provider_says(seen), _suspicions(seen, now)
    if certain or (suspected and seen.brake.why is None):
        return Decision((Lose("; ".join((*certain, *suspected)), is_certain=bool(certain)),))
    held = (HoldRepairs(str(seen.brake.why)),) if suspected and seen.brake.is_new else ()
    return Decision(held, timedelta(seconds=1))


def _is_heard(seen: NodeSeen, now: datetime) -> bool:
    is_beating = seen.last_seen is not None and now - seen.last_seen <= seen.patience.beats
    return seen.stream_lost_at is None and is_beating


def is_suspected_lost(seen: NodeSeen, now: datetime) -> bool:
    """Whether a suspected node would be given up now, without its provider's word."""
    return not _provider_says(seen) and bool(_suspicions(seen, now))


def _provider_says(seen: NodeSeen) -> list[str]:
    """What its provider has said since, if it confirms the loss. Without node recovery only its word that the host exists no longer counts."""
    is_asked_since = seen.host_word_at is not None and seen.host_word_at >= seen.state_since
    if is_asked_since and seen.host_word is HostWord.MISSING:
        return ["the provider knows no such instance"]
    if is_asked_since and seen.host_word is HostWord.DEAD and seen.is_recovered:
        return ["the provider says the instance is dead"]
    return []


def _suspicions(seen: NodeSeen, now: datetime) -> list[str]:
    """Who else confirms it, and may be wrong when the network is what has failed."""
    if not seen.is_recovered:
        return []
    said = []
    if seen.stream_lost_at is not None and seen.given_up:
        said.append("its stream is closed and its processes' peers lost their connections to it")
    if _silence(seen, now) > _longest_silence(seen):
        said.append(f"it has been silent for {_seconds(_silence(seen, now))}")
    return said


def _longest_silence(seen: NodeSeen) -> timedelta:
    """Who cannot be heard is not dead: a node that is merely cut off from us is waited for, as long as somebody says that it lives."""
    if seen.work_goes_on is not None:
        return seen.patience.cut_off if seen.work_goes_on else seen.patience.loss
    is_asked_since = seen.host_word_at is not None and seen.host_word_at >= seen.state_since
    is_said_to_live = is_asked_since and seen.host_word is HostWord.ALIVE
    return seen.patience.cut_off if is_said_to_live else seen.patience.loss


def _silence(seen: NodeSeen, now: datetime) -> timedelta:
    """For how long somebody has listened and heard nothing of the node."""
    last = max((at for at in (seen.last_seen, seen.stream_lost_at) if at is not None), default=seen.state_since)
    return now - max(last, seen.heard_since or last)


def _draining(seen: NodeSeen, now: datetime) -> Decision[Action]:
    """For a restart; a node that is drained because it is not wanted leaves."""
    if seen.restart is None:
        return Decision((Move(NodeState.READY, "Nothing is to be done to the node any more."),), timedelta(0))
    patience = seen.patience.drain if seen.restart_drain is None else seen.restart_drain
    rest = _busy_for(seen, patience, now)
    if rest > timedelta(0):
        return Decision((), min(rest, timedelta(seconds=1)))
    if seen.is_busy and not seen.restart_is_forced:
        return Decision((DropRestart(f"Its jobs did not leave within {_seconds(patience)}; the {seen.restart} is dropped."),))
    return Decision((StartAnew(_drained(seen)),))


def _detaching(seen: NodeSeen, now: datetime) -> Decision[Action]:
    if seen.move_to is None:
        return Decision((Move(NodeState.READY, "The node is not to move any more."),), timedelta(0))
    rest = _busy_for(seen, seen.patience.drain, now)
    if rest > timedelta(0):
        return Decision((), min(rest, timedelta(seconds=1)))
    return Decision((HandOver(seen.move_to, _drained(seen)),))


def _coming_back(seen: NodeSeen, now: datetime) -> Decision[Action]:
    """Only a provider that knows the host no longer ends the waiting early: a host that is started anew may look dead meanwhile."""
    is_asked_since = seen.host_word_at is not None and seen.host_word_at >= seen.state_since
    if is_asked_since and seen.host_word is HostWord.MISSING:
        return Decision((Lose("the provider knows no such instance"),))
    rest = seen.state_since + seen.patience.reboot - now
    if rest <= timedelta(0):
        return Decision((Lose(f"it did not come back within {_seconds(seen.patience.reboot)}"),))
    return Decision((), rest)


def _is_dead(seen: NodeSeen) -> bool:
    is_asked_since = seen.host_word_at is not None and seen.host_word_at >= seen.state_since
    return is_asked_since and seen.host_word in (HostWord.DEAD, HostWord.MISSING)


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"


_RULES = {
    NodeState.REQUESTED: _wait,
    NodeState.BOOTING: _booting,
    NodeState.CHECKING: _checking,
    NodeState.READY: _ready,
    NodeState.SUSPECT: _suspect,
    NodeState.REBOOTING: _coming_back,
    NodeState.UPDATING: _coming_back,
    NodeState.ATTACHING: _coming_back,
    NodeState.DRAINING: _draining,
    NodeState.DETACHING: _detaching,
}
