"""A cluster as its plan sees it, and what a plan can answer. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from models.cluster.states import ClusterState, GroupState
from models.ids import GroupId, JobId, LogicalId, NodeId
from models.node.states import COUNTED, WANTED, NodeState


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
    gave_way: bool = False
    """Let go while another node had its place: of that place it says nothing any more."""
    is_leaving: bool = False
    """On its way to another group, or lost on that way: its place here has gone with it."""
    is_replacement: bool = False
    failures: int = 0
    instance_type: str = ""
    types: tuple[str, ...] = ()
    """Those that it may be of, if they are not simply its group's."""
    obstacle: str | None = None
    """Why its present type cannot be had now."""
    message: str | None = None
    is_taken: bool = False
    """Its provider has said that it takes the host: its place is another's already, while what runs there leaves."""
    launch_after: datetime | None = None
    """It is not asked for before."""

    @property
    def fills_its_place(self) -> bool:
        return self.is_wanted and self.state in WANTED and not self.is_leaving and not self.is_taken

    @property
    def is_current(self) -> bool:
        return self.is_wanted and self.state in COUNTED and not self.is_leaving and not self.is_taken


@dataclass(frozen=True)
class PolicySeen:
    """How a spot group is kept going: ``models.spot.table.SpotPolicy``."""

    fallback_groups: tuple[str, ...] = ()
    fall_back_after: timedelta = timedelta(0)
    return_to_spot: bool = True
    return_after: timedelta = timedelta(0)


@dataclass(frozen=True)
class LoanSeen:
    """One node that the group ``lender`` runs in place of one of the group's that sees it."""

    id: int
    lender: GroupId
    since: datetime


@dataclass(frozen=True)
class GroupSeen:
    """``has_settled`` says that there is a specification to roll back to, ``is_changed`` that it is not the present one.

    ``types`` are those that its nodes may be of, the preferred ones first. ``is_head`` is a group without which the cluster cannot work.
    """

    id: GroupId
    name: str
    state: GroupState
    target: int
    minimum: int = 0
    minimum_since: datetime | None = None
    types: tuple[str, ...] = ()
    is_head: bool = False
    has_settled: bool = False
    is_changed: bool = False
    incoming: int = 0
    """Nodes of other groups that are on their way to this one."""
    nodes: tuple[NodeSeen, ...] = ()
    is_spot: bool = False
    too_dear: Mapping[str, str] = field(default_factory=dict)
    """Types that cost more now than its policy allows, and how much; ``types`` does not have them, unless there are no others."""
    policy: PolicySeen | None = None
    loans: tuple[LoanSeen, ...] = ()
    """Its own, oldest first."""
    lent: int = 0
    """How many nodes it runs in place of other groups' ones."""

    @property
    def wants(self) -> int:
        """How many nodes it is to have: its target, those of other groups that it runs for them, and not those that others run for it for good."""
        is_given_up = self.policy is not None and not self.policy.return_to_spot
        return max(0, self.target + self.lent - (len(self.loans) if is_given_up else 0))

    @property
    def priced_out(self) -> str | None:
        """Why none of its types may be asked for now."""
        if not self.too_dear or not set(self.types) <= set(self.too_dear):
            return None
        return "; ".join(self.too_dear[name] for name in self.types)

    @property
    def filling(self) -> tuple[NodeSeen, ...]:
        return tuple(node for node in self.nodes if node.fills_its_place)

    @property
    def current(self) -> int:
        return sum(node.is_current for node in self.nodes)

    @property
    def obstacle(self) -> str | None:
        """Why one of its nodes cannot be had now."""
        waiting = (node for node in self.filling if node.state is NodeState.REQUESTED)
        return next((node.obstacle or node.message for node in waiting if node.obstacle or node.message), None)

    @property
    def is_empty(self) -> bool:
        return not self.incoming and all(node.state is NodeState.GONE for node in self.nodes)

    @property
    def is_at_target(self) -> bool:
        return self.current == len(self.filling) == self.wants and not self.incoming

    @property
    def vacancies(self) -> tuple[NodeSeen, ...]:
        """The nodes that are lost, or taken, and whose places nobody fills; those first that were lost first."""
        newest: dict[LogicalId, NodeSeen] = {}
        for node in sorted(self.nodes, key=lambda node: (not node.gave_way, node.created_at, node.id)):
            newest[node.place] = node
        gone = [node for node in newest.values() if not node.fills_its_place and not node.is_leaving]
        lost = [node for node in gone if node.was_lost or (node.is_taken and node.is_wanted)]
        return tuple(sorted(lost, key=lambda node: (node.state_since, node.id)))


@dataclass(frozen=True)
class ClusterSeen:
    state: ClusterState
    is_continuous: bool
    replaces_lost_nodes: bool = True
    has_operation: bool = False
    has_idle_operation: bool = False
    """Whether something was asked of single nodes that none of them is in the middle of any more."""
    failure: str | None = None
    zone: str = ""
    groups: tuple[GroupSeen, ...] = ()
    live_jobs: tuple[JobId, ...] = field(default=())


@dataclass(frozen=True)
class WantNode:
    """One more host for the group; ``place`` is that of the lost node it takes over.

    Where hosts come to nothing the next one is not launched before ``not_before``; ``message`` is what the latest one came to.
    ``instance_type`` None is the group's own.
    """

    group: GroupId
    place: LogicalId | None
    failures: int
    why: str
    not_before: datetime | None = None
    message: str | None = None
    instance_type: str | None = None


@dataclass(frozen=True)
class LetGo:
    """``gives_way``: another node that stays has its place, too."""

    node: NodeId
    why: str
    gives_way: bool = False


@dataclass(frozen=True)
class TryType:
    """The node, for which there is no host yet, is asked for as another type: at once, or when its pause is over."""

    node: NodeId
    instance_type: str
    why: str
    is_at_once: bool = True


@dataclass(frozen=True)
class PutOff:
    """The node, for which there is no host yet, is not asked for before ``until``."""

    node: NodeId
    until: datetime
    why: str


@dataclass(frozen=True)
class Borrow:
    """The group ``lender`` runs one node in place of one of ``group``."""

    group: GroupId
    lender: GroupId
    why: str


@dataclass(frozen=True)
class GiveBack:
    """The loan is over: its lender wants one node less."""

    loan: int
    why: str


@dataclass(frozen=True)
class MissMinimum:
    """The group has not got its minimum in time: back to the counts with which it was last in service."""

    group: GroupId
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
class FinishIdleOperations:
    """Those that no node is in the middle of any more."""

    why: str


@dataclass(frozen=True)
class WakeJob:
    """The job's own plan sees that its cluster is going."""

    job: JobId
    why: str


Action = (
    WantNode
    | LetGo
    | TryType
    | PutOff
    | Borrow
    | GiveBack
    | MissMinimum
    | MoveGroup
    | RollBackGroup
    | MoveCluster
    | FinishOperations
    | FinishIdleOperations
    | WakeJob
)
