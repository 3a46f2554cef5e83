"""What to do about one cluster. Pure: same snapshot, same actions.

Groups converge one by one: vacant places are filled, surplus nodes are let go, a group that is to be deleted loses all of its nodes. The
cluster's own state follows from its groups: a classic cluster is all or nothing, a continuous one is in service while its groups converge.
Places are logical ids: a lost node's place is filled by a new node with the same logical id.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from models.cluster.states import ClusterState, GroupState
from models.node.states import NodeState
from workers.plans.cluster_seen import (
    Action,
    ClusterSeen,
    FinishIdleOperations,
    FinishOperations,
    GroupSeen,
    LetGo,
    MoveCluster,
    NodeSeen,
    RollBackGroup,
    WakeJob,
)
from workers.plans.decision import Decision, soonest
from workers.plans.fallback import fall_back
from workers.plans.group import BUILDING, converge, empty, judge

LOOK_AGAIN = timedelta(seconds=15)
"""How long a lost notification of a node's change can stay unnoticed by a cluster that is settled."""
_LOOK_SOON = timedelta(seconds=5)
"""The same, while callers wait for it."""
_CLASSIC_TRIES = 2
"""Hosts that may come to nothing in a row, at one place, before a classic cluster rolls back: a fluke happens, a pattern does not end."""


def plan(seen: ClusterSeen, now: datetime) -> Decision[Action]:
    """What to do about one cluster.

    A step towards the target is taken with every call; each step wakes the cluster, so that the next one follows from what it led to.
    """
    if seen.state is ClusterState.DELETED:
        return Decision()
    if seen.state is ClusterState.DELETING:
        return Decision(_delete(seen), _LOOK_SOON)
    failure = _unprovisionable(seen)
    if failure is not None:
        return Decision(_roll_back(seen, failure), timedelta(0))
    headless = _headless(seen)
    if headless is not None:
        return Decision(_give_up(seen, headless), timedelta(0))
    actions: list[Action] = []
    retry: timedelta | None = None
    for group in seen.groups:
        conclusions, patience = judge(seen, group, now)
        actions += [*converge(seen, group, now), *conclusions]
        retry = soonest(retry, patience)
    loans, patience = fall_back(seen, now)
    actions += [*loans, *_conclude(seen)]
    retry = soonest(retry, patience)
    if seen.has_idle_operation:
        actions.append(FinishIdleOperations("Its nodes are gone, or part of what was asked for later."))
    is_settled = seen.state in (ClusterState.IN_SERVICE, ClusterState.FAILED) and not seen.has_operation
    return Decision(tuple(actions), soonest(LOOK_AGAIN if is_settled else _LOOK_SOON, retry))


def _delete(seen: ClusterSeen) -> tuple[Action, ...]:
    going = "The cluster is being deleted."
    actions: list[Action] = []
    for group in seen.groups:
        actions += empty(group, going)
    if any(isinstance(action, LetGo) for action in actions):
        actions += [WakeJob(job, going) for job in seen.live_jobs]
    if not seen.groups:
        actions.append(MoveCluster(ClusterState.DELETED, "Every node is gone."))
    return tuple(actions)


def _unprovisionable(seen: ClusterSeen) -> str | None:
    """Why a classic cluster cannot become what was asked for; None as long as it can."""
    if seen.is_continuous or seen.state not in (ClusterState.CREATING, ClusterState.UPDATING):
        return None
    return next((why for group in seen.groups if group.state in BUILDING and (why := _hopeless(seen, group))), None)


def _hopeless(seen: ClusterSeen, group: GroupSeen) -> str | None:
    """Why the group cannot be had: which group, of which type, in which zone, and what its provider or its nodes say."""
    for node in group.filling:
        if node.state is NodeState.REQUESTED and node.obstacle:
            return _cannot(seen, group, node, node.obstacle)
    for node in group.vacancies:
        if node.failures >= _CLASSIC_TRIES:
            return _cannot(seen, group, node, node.message or "its nodes fail")
    return None


def _cannot(seen: ClusterSeen, group: GroupSeen, node: NodeSeen, why: str) -> str:
    kind = f" with {node.instance_type}" if node.instance_type else ""
    region = seen.zone[:-1]
    zone = f" in {seen.zone}" if seen.zone and region not in why else ""  # a provider with zones of its own names them itself
    return f"Instance group {group.name} cannot be provisioned{kind}{zone}: {why}"


def _roll_back(seen: ClusterSeen, why: str) -> tuple[Action, ...]:
    touched = [
        group for group in seen.groups if group.state is not GroupState.DELETING and (group.is_changed or not group.has_settled)
    ]
    return (*(RollBackGroup(group.id, why) for group in touched), MoveCluster(ClusterState.ROLLING_BACK, why))


def _conclude(seen: ClusterSeen) -> list[Action]:
    """The cluster's own state, from its groups."""
    done = [FinishOperations("Every group is at its target.")] if seen.has_operation else []
    is_reached = all(group.state is not GroupState.DELETING and (group.is_at_target or _is_idle(group)) for group in seen.groups)
    if seen.is_continuous and seen.state in (ClusterState.CREATING, ClusterState.UPDATING, ClusterState.ROLLING_BACK):
        return _open(seen)
    if seen.state is ClusterState.IN_SERVICE:
        return [*done] if is_reached else []
    if not is_reached:
        return []
    if seen.state in (ClusterState.CREATING, ClusterState.UPDATING):
        return [MoveCluster(ClusterState.IN_SERVICE, "Every group is at its target."), *done]
    if seen.state is ClusterState.ROLLING_BACK:
        if any(group.has_settled for group in seen.groups):
            return [MoveCluster(ClusterState.IN_SERVICE, "The cluster is back at its former specification."), *done]
        return [MoveCluster(ClusterState.FAILED, seen.failure or "The creation was rolled back."), *done]
    return []


def _is_idle(group: GroupSeen) -> bool:
    """A failed group is left as it is, until something is asked of it: nobody waits for it."""
    return group.state is GroupState.FAILED


def _open(seen: ClusterSeen) -> list[Action]:
    """A continuous cluster takes nodes at once; a new one that has heads does so from when each group of them has a node."""
    if seen.state is ClusterState.CREATING and not all(group.current for group in _heads(seen)):
        return []
    return [MoveCluster(ClusterState.IN_SERVICE, "The cluster takes nodes.")]


def _headless(seen: ClusterSeen) -> str | None:
    """Why a new continuous cluster will not get a head; without one it is nothing."""
    if not seen.is_continuous or seen.state is not ClusterState.CREATING:
        return None
    return next((why for group in _heads(seen) if (why := _hopeless(seen, group))), None)


def _heads(seen: ClusterSeen) -> list[GroupSeen]:
    return [group for group in seen.groups if group.is_head and group.target]


def _give_up(seen: ClusterSeen, why: str) -> tuple[Action, ...]:
    going = [group for group in seen.groups if group.state is not GroupState.DELETING]
    return (*(RollBackGroup(group.id, why) for group in going), MoveCluster(ClusterState.FAILED, why))
