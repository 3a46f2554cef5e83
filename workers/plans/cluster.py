"""What to do about one cluster. Pure: same snapshot, same actions.

Groups converge one by one: vacant places are filled, surplus nodes are let go, a group that is to be deleted loses all of its nodes. The
cluster's own state follows from its groups: a classic cluster is all or nothing, a continuous one is in service while its groups converge.
Places are logical ids: a lost node's place is filled by a new node with the same logical id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from models.cluster.states import ClusterState, GroupState
from models.ids import GroupId, JobId, LogicalId, NodeId
from models.node.states import COUNTED, WANTED, NodeState
from workers.plans.decision import Decision, soonest

LOOK_AGAIN = timedelta(seconds=15)
"""How long a lost notification of a node's change can stay unnoticed by a cluster that is settled."""
_LOOK_SOON = timedelta(seconds=5)
"""The same, while callers wait for it."""
_FIRST_RETRY = timedelta(seconds=2)
_LONGEST_RETRY = timedelta(minutes=5)
_CLASSIC_TRIES = 2
"""Hosts that may come to nothing in a row, at one place, before a classic cluster rolls back: a fluke happens, a pattern does not end."""

_BUILDING = (GroupState.CREATING, GroupState.UPDATING)
_SERVING = (GroupState.IN_SERVICE, GroupState.DEGRADED)


@dataclass(frozen=True)
class NodeSeen:
    """The newest node of a place, or an older one that is not gone yet. ``was_lost`` says that it did not go because it was told to."""

    id: NodeId
    place: LogicalId
    state: NodeState
    is_wanted: bool
    created_at: datetime
    state_since: datetime
    is_busy: bool = False
    was_lost: bool = False
    is_replaced_on_request: bool = False
    is_leaving: bool = False
    """On its way to another group, or lost on that way: its place here has gone with it."""
    is_replacement: bool = False
    failures: int = 0
    obstacle: str | None = None
    message: str | None = None

    @property
    def fills_its_place(self) -> bool:
        return self.is_wanted and self.state in WANTED and not self.is_leaving

    @property
    def is_current(self) -> bool:
        return self.is_wanted and self.state in COUNTED and not self.is_leaving


@dataclass(frozen=True)
class GroupSeen:
    """``has_settled`` says that there is a specification to roll back to, ``is_changed`` that it is not the present one."""

    id: GroupId
    name: str
    state: GroupState
    target: int
    minimum: int = 0
    has_settled: bool = False
    is_changed: bool = False
    incoming: int = 0
    """Nodes of other groups that are on their way to this one."""
    nodes: tuple[NodeSeen, ...] = ()

    @property
    def filling(self) -> tuple[NodeSeen, ...]:
        return tuple(node for node in self.nodes if node.fills_its_place)

    @property
    def current(self) -> int:
        return sum(node.is_current for node in self.nodes)

    @property
    def is_empty(self) -> bool:
        return not self.incoming and all(node.state is NodeState.GONE for node in self.nodes)

    @property
    def is_at_target(self) -> bool:
        return self.current == len(self.filling) == self.target and not self.incoming

    @property
    def vacancies(self) -> tuple[NodeSeen, ...]:
        """The lost nodes whose places nobody fills, those first that were lost first."""
        newest: dict[LogicalId, NodeSeen] = {}
        for node in sorted(self.nodes, key=lambda node: (node.created_at, node.id)):
            newest[node.place] = node
        lost = [node for node in newest.values() if node.was_lost and not node.fills_its_place and not node.is_leaving]
        return tuple(sorted(lost, key=lambda node: (node.state_since, node.id)))


@dataclass(frozen=True)
class ClusterSeen:
    state: ClusterState
    is_continuous: bool
    replaces_lost_nodes: bool = True
    has_operation: bool = False
    failure: str | None = None
    groups: tuple[GroupSeen, ...] = ()
    live_jobs: tuple[JobId, ...] = field(default=())


@dataclass(frozen=True)
class WantNode:
    """One more host for the group; ``place`` is that of the lost node it takes over."""

    group: GroupId
    place: LogicalId | None
    failures: int
    why: str


@dataclass(frozen=True)
class LetGo:
    node: NodeId
    why: str


@dataclass(frozen=True)
class MoveGroup:
    group: GroupId
    new: GroupState
    why: str


@dataclass(frozen=True)
class RollBackGroup:
    """Back to the specification at which it was last in service; away, if it never was."""

    group: GroupId
    why: str


@dataclass(frozen=True)
class MoveCluster:
    new: ClusterState
    why: str


@dataclass(frozen=True)
class FinishOperations:
    why: str


@dataclass(frozen=True)
class WakeJob:
    """The job's own plan sees that its cluster is going."""

    job: JobId
    why: str


Action = WantNode | LetGo | MoveGroup | RollBackGroup | MoveCluster | FinishOperations | WakeJob


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
    actions: list[Action] = []
    retry: timedelta | None = None
    for group in seen.groups:
        steps, again = _converge(seen, group, now)
        actions += [*steps, *_judge(seen, group)]
        retry = soonest(retry, again)
    actions += _conclude(seen)
    is_settled = seen.state in (ClusterState.IN_SERVICE, ClusterState.FAILED) and not seen.has_operation
    return Decision(tuple(actions), soonest(LOOK_AGAIN if is_settled else _LOOK_SOON, retry))


def _delete(seen: ClusterSeen) -> tuple[Action, ...]:
    going = "The cluster is being deleted."
    actions: list[Action] = []
    for group in seen.groups:
        actions += _empty(group, going)
    if any(isinstance(action, LetGo) for action in actions):
        actions += [WakeJob(job, going) for job in seen.live_jobs]
    if not seen.groups:
        actions.append(MoveCluster(ClusterState.DELETED, "Every node is gone."))
    return tuple(actions)


def _empty(group: GroupSeen, why: str) -> list[Action]:
    if group.is_empty:
        return [MoveGroup(group.id, GroupState.GONE, "Every node is gone.")]
    return [LetGo(node.id, why) for node in group.nodes if node.is_wanted and node.state is not NodeState.GONE]


def _unprovisionable(seen: ClusterSeen) -> str | None:
    """Why a classic cluster cannot become what was asked for; None as long as it can."""
    if seen.is_continuous or seen.state not in (ClusterState.CREATING, ClusterState.UPDATING):
        return None
    for group in seen.groups:
        if group.state not in _BUILDING:
            continue
        for node in group.filling:
            if node.state is NodeState.REQUESTED and node.obstacle:
                return f"Instance group {group.name} cannot be provisioned: {node.obstacle}"
        for node in group.vacancies:
            if node.failures >= _CLASSIC_TRIES:
                return f"Instance group {group.name} cannot be provisioned: {node.message or 'its nodes fail'}"
    return None


def _roll_back(seen: ClusterSeen, why: str) -> tuple[Action, ...]:
    touched = [
        group for group in seen.groups if group.state is not GroupState.DELETING and (group.is_changed or not group.has_settled)
    ]
    return (*(RollBackGroup(group.id, why) for group in touched), MoveCluster(ClusterState.ROLLING_BACK, why))


def _converge(seen: ClusterSeen, group: GroupSeen, now: datetime) -> tuple[list[Action], timedelta | None]:
    """Nodes to add or to let go, and when a vacancy may be tried again."""
    if group.state is GroupState.DELETING:
        return _empty(group, f"Instance group {group.name} is being deleted."), None
    if group.state is GroupState.FAILED or seen.state is ClusterState.FAILED:
        return [], None
    missing = group.target - len(group.filling) - group.incoming
    if missing < 0:
        return [LetGo(node.id, f"The group scales down to {group.target}.") for node in _surplus(group, -missing)], None
    vacancies = group.vacancies
    actions: list[Action] = []
    again: timedelta | None = None
    for vacancy in vacancies[:missing]:
        if (
            not seen.replaces_lost_nodes
            and not vacancy.is_replaced_on_request
            and vacancy.failures == 0
            and group.state in _SERVING
        ):
            continue
        rest = vacancy.state_since + _pause(vacancy.failures) - now
        if rest > timedelta(0):
            again = soonest(again, rest)
            continue
        why = f"{vacancy.message or 'A node was lost.'} Its place is filled again."
        actions.append(WantNode(group.id, vacancy.place, vacancy.failures, why))
    new = WantNode(group.id, None, 0, f"The group wants {group.target} nodes.")
    return actions + [new] * max(0, missing - len(vacancies)), again


def _pause(failures: int) -> timedelta:
    """How long a place stays empty after its latest host: not at all after a loss, ever longer while hosts come to nothing."""
    if failures == 0:
        return timedelta(0)
    return min(_LONGEST_RETRY, _FIRST_RETRY * (1 << min(failures - 1, 12)))


def _surplus(group: GroupSeen, count: int) -> list[NodeSeen]:
    """Who goes first: nodes without a job, of these the ones that do not serve yet, of these the newest."""
    order = sorted(group.filling, key=lambda node: (node.created_at, node.id), reverse=True)
    return sorted(order, key=lambda node: (node.is_busy, node.state is NodeState.READY))[:count]


def _judge(seen: ClusterSeen, group: GroupSeen) -> list[Action]:
    """The group's own state, from its counts."""
    if group.state in (GroupState.DELETING, GroupState.FAILED, GroupState.SYSTEM_UPDATING):
        return []
    if group.state in _BUILDING:
        is_built = group.is_at_target or (seen.is_continuous and group.current >= group.minimum and not _surplus_of(group))
        return [MoveGroup(group.id, GroupState.IN_SERVICE, f"The group has {group.current} nodes.")] if is_built else []
    is_hurt = bool(group.vacancies) and len(group.filling) < group.target
    is_healing = any(node.is_replacement and not node.is_current for node in group.filling)
    if group.state is GroupState.DEGRADED and group.current >= group.target:
        return [MoveGroup(group.id, GroupState.IN_SERVICE, f"The group has its {group.target} nodes again.")]
    if group.state is GroupState.IN_SERVICE and group.current < group.target and (is_hurt or is_healing):
        return [MoveGroup(group.id, GroupState.DEGRADED, f"{group.current} of {group.target} nodes serve.")]
    return []


def _surplus_of(group: GroupSeen) -> int:
    return max(0, len(group.filling) - group.target)


def _conclude(seen: ClusterSeen) -> list[Action]:
    """The cluster's own state, from its groups."""
    done = [FinishOperations("Every group is at its target.")] if seen.has_operation else []
    is_reached = all(group.state is not GroupState.DELETING and group.is_at_target for group in seen.groups)
    if seen.is_continuous and seen.state in (ClusterState.CREATING, ClusterState.UPDATING, ClusterState.ROLLING_BACK):
        return [MoveCluster(ClusterState.IN_SERVICE, "The cluster takes nodes.")]
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
