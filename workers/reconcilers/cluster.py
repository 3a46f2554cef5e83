"""Clusters: what is seen of them, and how a plan's actions are written down. Every decision is in ``workers.plans.cluster``."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.cluster import changes
from models.cluster import queries as clusters
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.job import queries as jobs
from models.move import wake
from models.node import queries as nodes
from models.node.changes import settle_unwanted, settle_wanted_node
from models.node.hosts import settle_other_type, settle_put_off
from models.node.states import GAVE_WAY, NodeState
from models.node.table import Node
from models.node.wishes import settle_gave_way
from models.operation import queries as operations
from models.operation.changes import settle_done
from models.session import keep
from models.spot import queries as spot
from models.spot.changes import settle_borrowed, settle_returned
from workers.plans import cluster as plans
from workers.plans import cluster_seen as values
from workers.plans.decision import Decision
from workers.reconcilers.spot_seen import SpotSeen, seen_spots

_HEADS = ("Controller", "Login")
"""Slurm's nodes without which nobody can work on the cluster."""


class ClusterReconciler:
    TABLE: ClassVar[Any] = Cluster
    SPAN: ClassVar[timedelta] = timedelta(seconds=5)
    ACTS_OUTSIDE: ClassVar[bool] = False

    def observe(self, session: Session, row_id: str, now: datetime) -> values.ClusterSeen | None:
        cluster = session.get(Cluster, row_id)
        if cluster is None:
            return None
        groups = clusters.groups(session, row_id)
        present = nodes.of_cluster(session, row_id, with_incoming=[group.id for group in groups])
        rows = {node.id: node for node in (*nodes.of_places(session, row_id), *present)}
        keep(session, [cluster, *rows.values()])
        busy = jobs.busy_nodes(session, row_id)
        taken = spot.evacuated_nodes(session, row_id)
        spots = seen_spots(session, cluster, groups, now)
        of_group: dict[str, list[values.NodeSeen]] = defaultdict(list)
        for node in rows.values():
            of_group[node.group_id].append(_node_seen(node, is_busy=node.id in busy, is_taken=node.id in taken))
        incoming = Counter(node.move_to for node in present if node.is_wanted and node.state is not NodeState.RELEASING)
        return values.ClusterSeen(
            state=cluster.state,
            is_continuous=cluster.is_continuous,
            replaces_lost_nodes=cluster.settings.get("NodeRecovery") != "None",
            has_operation=bool(operations.open_of_cluster(session, row_id)),
            has_idle_operation=bool(nodes.idle_operations(session, row_id)),
            failure=cluster.failure_message,
            zone=cluster.zone,
            groups=tuple(_group_seen(group, of_group[group.id], incoming[group.id], spots[group.id]) for group in groups),
            live_jobs=tuple(job.id for job in jobs.of_cluster(session, row_id, live_only=True)),
        )

    def plan(self, seen: values.ClusterSeen, now: datetime) -> Decision[values.Action]:
        return plans.plan(seen, now)

    def act(self, seen: values.ClusterSeen, action: values.Action) -> Any:
        raise NotImplementedError

    def settle(self, session: Session, row_id: str, results: tuple[values.Action, ...], now: datetime) -> None:
        cluster = session.get_one(Cluster, row_id)
        groups = {group.id: group for group in clusters.groups(session, row_id)}
        for action in sorted(results, key=_lock_order):
            _write(session, cluster, groups, action, now)
        if cluster.state is not ClusterState.DELETED:
            wake(session, cluster, now=now)


def _write(session: Session, cluster: Cluster, groups: dict[Any, InstanceGroup], action: values.Action, now: datetime) -> None:
    match action:
        case values.MoveCluster(new=new, why=why):
            changes.settle_cluster(session, cluster, new, why=why, now=now)
        case values.FinishOperations() | values.FinishIdleOperations():
            _finish(session, cluster, action, now)
        case values.MoveGroup(group=group, new=new, why=why):
            changes.settle_group(session, cluster, groups[group], new, why=why, now=now)
        case values.RollBackGroup(group=group):
            changes.settle_rollback(groups[group], now=now)
        case values.WantNode() | values.LetGo() | values.TryType() | values.PutOff():
            _write_node(session, groups, action, now)
        case values.Borrow() | values.GiveBack():
            _settle_loan(session, cluster, groups, action, now)
        case values.MissMinimum(group=group, why=why):
            changes.settle_minimum_missed(session, cluster, groups[group], why=why, now=now)
        case values.WakeJob(job=job):
            wake(session, jobs.get(session, job, lock=True), now=now)


def _write_node(
    session: Session,
    groups: dict[Any, InstanceGroup],
    action: values.WantNode | values.LetGo | values.TryType | values.PutOff,
    now: datetime,
) -> None:
    match action:
        case values.WantNode(group=group, place=place, failures=failures, not_before=not_before, message=message) as want:
            settle_wanted_node(
                session,
                groups[group],
                logical_id=place,
                failures=failures,
                instance_type=want.instance_type,
                not_before=not_before,
                message=message,
                now=now,
            )
        case values.LetGo(node=node, why=why, gives_way=gives_way):
            locked = nodes.get(session, node, lock=True)
            if gives_way:
                settle_gave_way(locked)
            settle_unwanted(session, locked, why=why, now=now)
        case values.TryType(node=node, instance_type=instance_type, why=why, is_at_once=is_at_once):
            locked = nodes.get(session, node, lock=True)
            settle_other_type(session, locked, instance_type, why=why, is_at_once=is_at_once, now=now)
        case values.PutOff(node=node, until=until, why=why):
            settle_put_off(session, nodes.get(session, node, lock=True), until=until, why=why, now=now)


def _settle_loan(
    session: Session, cluster: Cluster, groups: dict[Any, InstanceGroup], action: values.Borrow | values.GiveBack, now: datetime
) -> None:
    match action:
        case values.Borrow(group=group, lender=lender, why=why):
            settle_borrowed(session, cluster, groups[group], lender, why=why, now=now)
        case values.GiveBack(loan=loan, why=why):
            settle_returned(session, cluster, loan, why=why, now=now)


def _finish(
    session: Session, cluster: Cluster, action: values.FinishOperations | values.FinishIdleOperations, now: datetime
) -> None:
    if isinstance(action, values.FinishOperations):
        changes.settle_operations(session, cluster, now=now)
        return
    for operation_id in nodes.idle_operations(session, cluster.id):
        settle_done(session, operation_id, now=now)


def _lock_order(action: values.Action) -> tuple[int, str]:
    """Cluster, groups, nodes by id, jobs by id: two transactions that lock in one order cannot wait for each other."""
    match action:
        case values.LetGo(node=node) | values.TryType(node=node) | values.PutOff(node=node):
            return (2, node)
        case values.WantNode():
            return (2, "")
        case values.WakeJob(job=job):
            return (3, job)
        case values.MoveCluster():
            return (1, "")
        case values.FinishOperations() | values.FinishIdleOperations():
            return (4, "")  # last: what this step concludes still belongs to the operation
        case _:
            return (0, "")


def _group_seen(group: InstanceGroup, seen: list[values.NodeSeen], incoming: int, spot_seen: SpotSeen) -> values.GroupSeen:
    return values.GroupSeen(
        id=group.id,
        name=group.name,
        state=GroupState(group.state),
        target=group.target_count,
        minimum=group.min_count,
        minimum_since=group.minimum_since,
        types=spot_seen.types,
        is_head=group.spec.get("SlurmConfig", {}).get("NodeType") in _HEADS,
        has_settled=group.settled is not None,
        is_changed=group.settled is not None and group.settled != clusters.specification(group),
        incoming=incoming,
        nodes=tuple(seen),
        is_spot=group.is_spot,
        too_dear=spot_seen.too_dear,
        policy=spot_seen.policy,
        loans=spot_seen.loans,
        lent=spot_seen.lent,
    )


def _node_seen(node: Node, *, is_busy: bool, is_taken: bool) -> values.NodeSeen:
    launch_after = node.facts.get("launch_after")
    return values.NodeSeen(
        id=node.id,
        place=node.logical_id,
        state=NodeState(node.state),
        is_wanted=node.is_wanted,
        created_at=node.created_at,
        state_since=node.state_since,
        is_busy=is_busy,
        was_lost=node.lost_because is not None,
        is_replaced_on_request=node.is_replaced_on_request,
        gave_way=bool(node.facts.get(GAVE_WAY)),
        is_leaving=node.move_to is not None,
        is_replacement=bool(node.facts.get("is_replacement")),
        failures=int(node.facts.get("failures", 0)),
        instance_type=node.instance_type,
        types=tuple(node.facts.get("types", ())),
        obstacle=node.facts.get("obstacle"),
        message=node.message,
        is_taken=is_taken,
        launch_after=None if launch_after is None else datetime.fromisoformat(launch_after),
    )
