"""A cluster's rows as plain values, and what the plan's actions and the outside world do to them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from models.cluster.states import CLUSTER, GROUP, ClusterState, GroupState
from models.ids import GroupId, LogicalId, NodeId
from models.node.states import NODE, RESTARTING, NodeState
from workers.plans import cluster as plans
from workers.plans import cluster_seen as values
from workers.plans.cluster_seen import ClusterSeen, GroupSeen, NodeSeen

START = datetime(2031, 5, 1, tzinfo=UTC)
_GROWTH = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.CHECKING, NodeState.READY)
_BACK = {
    NodeState.DRAINING: NodeState.REBOOTING,
    **dict.fromkeys(RESTARTING, NodeState.CHECKING),
    NodeState.DETACHING: NodeState.READY,
}
"""What becomes of wanted nodes that are started anew, or whose move is withdrawn."""


@dataclass
class World:
    """``seen`` is what the plan is shown next; ``settled`` what a rollback returns to."""

    seen: ClusterSeen
    now: datetime = START
    settled: dict[str, int] = field(default_factory=dict)
    numbers: itertools.count = field(default_factory=lambda: itertools.count(1))
    taken: list = field(default_factory=list)

    def step(self) -> tuple:
        actions = plans.plan(self.seen, self.now).actions
        for action in actions:
            self._write(action)
        self.taken += actions
        return actions

    def settle(self, *, rounds: int = 60) -> None:
        """Lets the plan and a willing world work until nothing is left to do."""
        for _ in range(rounds):
            acted = self.step()
            grown = self._grow()
            self.now += timedelta(minutes=6)  # longer than any pause between tries
            if not acted and not grown:
                return
        message = f"no fixed point: {self.seen}"
        raise AssertionError(message)

    def group(self, name: str) -> GroupSeen:
        return next(group for group in self.seen.groups if group.name == name)

    def nodes(self) -> list[NodeSeen]:
        return [node for group in self.seen.groups for node in group.nodes]

    def change_node(self, node_id: str, **changes) -> None:
        groups = tuple(
            replace(group, nodes=tuple(replace(node, **changes) if node.id == node_id else node for node in group.nodes))
            for group in self.seen.groups
        )
        self.seen = replace(self.seen, groups=groups)

    def lose(self, node: NodeSeen, *, failures: int = 0) -> None:
        self.change_node(
            node.id,
            state=NodeState.RELEASING,
            is_wanted=False,
            was_lost=True,
            failures=failures,
            state_since=self.now,
            message="Lost.",
        )

    def _grow(self) -> bool:
        """The world does what it is asked for: wanted hosts come up, unwanted ones go."""
        has_grown = False
        for node in self.nodes():
            if node.is_wanted and node.state in _GROWTH[:-1] and not node.obstacle:
                self.change_node(node.id, state=_GROWTH[_GROWTH.index(node.state) + 1])
                has_grown = True
            elif node.is_wanted and node.state in _BACK:
                self.change_node(node.id, state=_BACK[node.state])
                has_grown = True
            elif not node.is_wanted and node.state is not NodeState.GONE:
                self.change_node(node.id, state=NodeState.GONE)
                has_grown = True
        return has_grown

    def _write(self, action: values.Action) -> None:
        match action:
            case values.WantNode(group=group, place=place, failures=failures):
                number = next(self.numbers)
                node = NodeSeen(
                    id=NodeId(f"new-{number}"),
                    place=place or LogicalId(f"place-{number}"),
                    state=NODE.initial,
                    is_wanted=True,
                    created_at=self.now + timedelta(microseconds=number),
                    state_since=self.now,
                    is_replacement=place is not None,
                    failures=failures,
                    instance_type=next(iter(self._by_id(group).types), ""),
                )
                self._change_group(group, nodes=(*self._by_id(group).nodes, node))
            case values.LetGo(node=node):
                self.change_node(node, is_wanted=False)
            case values.TryType(node=node, instance_type=instance_type):
                self.change_node(node, instance_type=instance_type, obstacle=None)
            case values.MissMinimum(group=group):
                before = self.settled.get(self._by_id(group).name, 0)
                self._change_group(group, target=before, minimum=0, state=GroupState.IN_SERVICE)
            case values.MoveGroup(group=group, new=new):
                self._move_group(group, new)
            case values.RollBackGroup(group=group):
                self._roll_back(group)
            case values.MoveCluster(new=new, why=why):
                CLUSTER.check(self.seen.state, new)
                self.seen = replace(self.seen, state=new, failure=why if new is ClusterState.ROLLING_BACK else self.seen.failure)
                self._keep()
            case values.FinishOperations():
                self.seen = replace(self.seen, has_operation=False)

    def _by_id(self, group: GroupId) -> GroupSeen:
        return next(one for one in self.seen.groups if one.id == group)

    def _change_group(self, group: GroupId, **changes) -> None:
        self.seen = replace(
            self.seen, groups=tuple(replace(one, **changes) if one.id == group else one for one in self.seen.groups)
        )

    def _move_group(self, group: GroupId, new: GroupState) -> None:
        one = self._by_id(group)
        GROUP.check(one.state, new)
        if new is GroupState.GONE:
            self.seen = replace(self.seen, groups=tuple(other for other in self.seen.groups if other.id != group))
            return
        self._change_group(group, state=new)
        self._keep()

    def _keep(self) -> None:
        """As the rows do: what serves in a cluster that serves is what a rollback returns to."""
        for one in self.seen.groups:
            if self.seen.state is ClusterState.IN_SERVICE and one.state is GroupState.IN_SERVICE:
                self.settled[one.name] = one.target
                self._change_group(one.id, has_settled=True, is_changed=False)

    def _roll_back(self, group: GroupId) -> None:
        one = self._by_id(group)
        if one.name in self.settled:
            self._change_group(group, target=self.settled[one.name])
        else:
            GROUP.check(one.state, GroupState.DELETING)
            self._change_group(group, target=0, state=GroupState.DELETING)


def group(name: str = "workers", target: int = 2, state: GroupState = GroupState.CREATING, **more) -> GroupSeen:
    return GroupSeen(id=GroupId(f"g-{name}"), name=name, state=state, target=target, **more)


def ready(number: int, **more) -> NodeSeen:
    facts = {
        "id": NodeId(f"n-{number:03}"),
        "place": LogicalId(f"l-{number:03}"),
        "state": NodeState.READY,
        "is_wanted": True,
        "created_at": START - timedelta(minutes=100 - number),
        "state_since": START - timedelta(minutes=50),
    }
    return NodeSeen(**(facts | more))


def world(*groups: GroupSeen, state: ClusterState = ClusterState.CREATING, is_continuous: bool = False, **more) -> World:
    seen = ClusterSeen(state=state, is_continuous=is_continuous, groups=groups or (group(),), has_operation=True, **more)
    return World(seen, settled={one.name: sum(node.is_current for node in one.nodes) for one in groups if one.has_settled})
