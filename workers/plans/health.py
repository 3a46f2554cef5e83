"""What to do about one deep health check. Pure: same snapshot, same actions.

Nodes are asked one by one, as soon as they have no work; those that train together are asked together, once every one of them can. A node
that is still busy after ten minutes is left out. What a failure leads to is the cluster's NodeRecovery: another host, or no new work.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from models.health.states import CheckKind, CheckState
from models.ids import CheckId
from workers.plans.decision import Decision, soonest

PATIENCE = timedelta(minutes=10)
"""How long a node may be busy before it is left out."""
_ANSWER = timedelta(minutes=30)
"""How long an examination may take; the agent's own limits are shorter."""
_LOOK_AGAIN = timedelta(seconds=2)
_OVER = (CheckState.PASSED, CheckState.FAILED, CheckState.SKIPPED)


@dataclass(frozen=True)
class NodeSeen:
    """One examination and its node. ``address`` and ``port`` are where its agent listens to its peers."""

    check: CheckId
    group: str
    state: CheckState
    state_since: datetime
    created_at: datetime
    kinds: frozenset[CheckKind]
    address: str
    port: int | None
    serves: bool = True
    is_busy: bool = False
    is_gone: bool = False
    is_held: bool = False
    """Whether the node is kept from work for the sake of its examination."""
    why: str | None = None


@dataclass(frozen=True)
class CheckSeen:
    """``peers`` are the addresses and ports of the agents of each group's nodes that serve."""

    nodes: tuple[NodeSeen, ...]
    peers: dict[str, tuple[tuple[str, int], ...]]
    replaces: bool = True
    cluster_is_going: bool = False


@dataclass(frozen=True)
class Ask:
    """``team`` are those that train together, this node among them; empty if it does not."""

    check: CheckId
    peers: tuple[tuple[str, int], ...]
    team: tuple[CheckId, ...]
    why: str


@dataclass(frozen=True)
class Skip:
    check: CheckId
    why: str


@dataclass(frozen=True)
class GiveUp:
    """No answer came."""

    check: CheckId
    why: str


@dataclass(frozen=True)
class GiveBack:
    """The node takes work again."""

    check: CheckId
    why: str


@dataclass(frozen=True)
class Replace:
    check: CheckId
    why: str


@dataclass(frozen=True)
class Keep:
    """The node failed, and nobody may replace it: it takes no new work."""

    check: CheckId
    why: str


@dataclass(frozen=True)
class Close:
    why: str


Action = Ask | Skip | GiveUp | GiveBack | Replace | Keep | Close


def plan(seen: CheckSeen, now: datetime) -> Decision[Action]:
    """What to do about one deep health check."""
    if seen.cluster_is_going:
        return Decision((Close("The cluster is being deleted."),))
    actions: list[Action] = []
    again: timedelta | None = None
    for node in seen.nodes:
        step, rest = _step(seen, node, now)
        actions += [] if step is None else [step]
        again = soonest(again, rest)
    actions += _ask(seen, now)
    if actions:
        return Decision(tuple(actions), timedelta(0))
    if all(node.state in _OVER for node in seen.nodes):
        return Decision((Close(_outcome(seen)),))
    return Decision((), soonest(_LOOK_AGAIN, again))


def _step(seen: CheckSeen, node: NodeSeen, now: datetime) -> tuple[Action | None, timedelta | None]:
    if node.state is CheckState.ASKED:
        return _asked(node, now)
    if node.state is CheckState.WAITING:
        return _waiting(node, now)
    if not node.is_held or node.is_gone:
        return None, None  # seen to before
    if node.state is not CheckState.FAILED:
        return GiveBack(node.check, "Its examination is over."), None
    why = f"Deep health checks failed: {node.why}"
    return (Replace(node.check, why) if seen.replaces else Keep(node.check, why)), None


def _asked(node: NodeSeen, now: datetime) -> tuple[Action | None, timedelta | None]:
    if node.is_gone:
        return Skip(node.check, "The node went before it was through."), None
    rest = node.state_since + _ANSWER - now
    if rest <= timedelta(0):
        return GiveUp(node.check, f"no answer came within {_ANSWER}"), None
    return None, rest


def _waiting(node: NodeSeen, now: datetime) -> tuple[Action | None, timedelta | None]:
    if node.is_gone:
        return Skip(node.check, "The node is gone."), None
    rest = node.created_at + PATIENCE - now
    if not _can_start(node) and rest <= timedelta(0):
        why = "it still had work" if node.is_busy else "it was not in service"
        return Skip(node.check, f"After {PATIENCE.total_seconds() / 60:.0f} minutes {why}."), None
    return None, rest


def _can_start(node: NodeSeen) -> bool:
    return node.serves and not node.is_busy and not node.is_gone


def _ask(seen: CheckSeen, now: datetime) -> list[Action]:
    waiting = [node for node in seen.nodes if node.state is CheckState.WAITING and not _is_late(node, now)]
    alone = [node for node in waiting if CheckKind.TRAINING not in node.kinds and _can_start(node)]
    asked: list[Action] = [Ask(node.check, _peers(seen, node), (), "The node has no work.") for node in alone]
    for group in dict.fromkeys(node.group for node in waiting):
        team = [node for node in waiting if node.group == group and CheckKind.TRAINING in node.kinds]
        if team and all(_can_start(node) for node in team):
            together = tuple(node.check for node in team)
            asked += [Ask(node.check, _peers(seen, node), together, f"{len(team)} nodes have no work.") for node in team]
    return asked


def _is_late(node: NodeSeen, now: datetime) -> bool:
    return node.is_gone or (not _can_start(node) and node.created_at + PATIENCE <= now)


def _peers(seen: CheckSeen, node: NodeSeen) -> tuple[tuple[str, int], ...]:
    if CheckKind.CONNECTIVITY not in node.kinds:
        return ()
    return tuple(peer for peer in seen.peers.get(node.group, ()) if peer != (node.address, node.port))


def _outcome(seen: CheckSeen) -> str:
    counted = {state: sum(node.state is state for node in seen.nodes) for state in _OVER}
    words = ", ".join(f"{count} {state}" for state, count in counted.items())
    return f"Deep health checks of {len(seen.nodes)} nodes ended: {words}."
