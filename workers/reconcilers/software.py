"""Software updates: what is seen of them, and how a plan's actions are written down. Every decision is in ``workers.plans.software``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.alarm import queries as alarms
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.cluster.table import Cluster, InstanceGroup
from models.ids import LogicalId
from models.job import queries as jobs
from models.node import queries as nodes
from models.node.changes import settle_held as hold
from models.node.states import RESTARTING, NodeState
from models.node.table import Node
from models.node.wishes import request_reimage, request_replacement
from models.software import changes, queries
from models.software.states import UpdateState
from models.software.table import GroupUpdate, SoftwareUpdate
from workers.plans import software as plans
from workers.plans.batches import Batching
from workers.plans.decision import Decision


class SoftwareReconciler:
    TABLE: ClassVar[Any] = SoftwareUpdate
    SPAN: ClassVar[timedelta] = timedelta(seconds=5)
    ACTS_OUTSIDE: ClassVar[bool] = False

    def observe(self, session: Session, row_id: str, _now: datetime) -> plans.UpdateSeen | None:
        update = session.get(SoftwareUpdate, row_id)
        if update is None or update.ended_at is not None:
            return None
        cluster = clusters.get(session, update.cluster_id, lock=True)  # what is concluded of its groups is written to them
        rows = queries.of_update(session, update.id)
        seen = _nodes_seen(session, cluster)
        named = {alarm["AlarmName"] for row in rows for alarm in row.deployment.get("AutoRollbackConfiguration", ())}
        return plans.UpdateSeen(
            groups=tuple(_group_seen(session.get_one(InstanceGroup, row.group_id), row, seen) for row in rows),
            ringing=tuple(alarms.ringing(session, sorted(named)).items()),
            cluster_is_going=cluster.state in (ClusterState.DELETING, ClusterState.DELETED),
            turned_because=update.rolled_back_because,
        )

    def plan(self, seen: plans.UpdateSeen, now: datetime) -> Decision[plans.Action]:
        return plans.plan(seen, now)

    def act(self, seen: plans.UpdateSeen, action: plans.Action) -> Any:
        raise NotImplementedError

    def settle(self, session: Session, row_id: str, results: tuple[plans.Action, ...], now: datetime) -> None:
        """The cluster is locked since it was observed; nodes are locked by id, whichever group they belong to."""
        update = session.get_one(SoftwareUpdate, row_id)
        cluster = session.get_one(Cluster, update.cluster_id)
        _lock_nodes(session, update, results)
        for action in results:
            if isinstance(action, plans.Close):
                changes.settle_closed(session, cluster, update, why=action.why, now=now)
                continue
            group = clusters.group(session, action.group)
            row = queries.group_update(session, update.id, action.group)
            _write(session, update, group, row, action, now)
        for action in results:
            _write_nodes(session, update, action, now)


def _lock_nodes(session: Session, update: SoftwareUpdate, results: tuple[plans.Action, ...]) -> None:
    """Every node that one of the actions writes to: those that it names, and those that its group lets go or is through with."""
    named = {node for action in results for node in getattr(action, "nodes", ())}
    groups = {action.group for action in results if isinstance(action, plans.FinishBatch | plans.Skip | plans.TurnBack | plans.End)}
    batch = {place for row in queries.of_update(session, update.id) if row.group_id in groups for place in row.batch}
    nodes.lock(session, named, groups=groups, holder=update.id, places=batch)


def _write(
    session: Session, update: SoftwareUpdate, group: InstanceGroup, row: GroupUpdate, action: plans.Action, now: datetime
) -> None:
    match action:
        case plans.Begin(why=why):
            changes.settle_begun(session, update, group, row, why=why, now=now)
        case plans.StartBatch(places=places, why=why):
            changes.settle_batch(session, update, group, row, places, why=why, now=now)
        case plans.FinishBatch():
            _let_go(session, update, group, row.batch, now)
            for node in nodes.newest_of(session, group.id, row.batch):
                node.software_at = now
            changes.settle_batch_done(row, now=now)
        case plans.Skip(places=places, why=why):
            _let_go(session, update, group, places, now)
            changes.settle_skipped(session, update, group, row, places, why=why, now=now)
        case plans.TurnBack(why=why):
            _let_go(session, update, group, None, now)
            changes.settle_turned(session, update, group, row, why=why, now=now)
        case plans.End(new=new, why=why):
            _let_go(session, update, group, None, now)
            changes.settle_ended(session, update, group, row, new, why=why, now=now)
        case _:
            pass


def _write_nodes(session: Session, update: SoftwareUpdate, action: plans.Action, now: datetime) -> None:
    match action:
        case plans.Hold(nodes=ids):
            for node_id in sorted(ids):
                node = nodes.get(session, node_id, lock=True)
                if node.held_for is None:  # who is kept from work for another reason stays so when the update is over
                    hold(session, node, update.id, now=now)
        case plans.Renew(nodes=ids, why=why):
            for node_id in sorted(ids):
                node = nodes.get(session, node_id, lock=True)
                if node.state is NodeState.REQUESTED and node.is_wanted:
                    node.operation_id = update.operation_id
                    request_replacement(session, node, why=why, now=now)
        case plans.StartBatch(nodes=ids, image=image, drain=drain, is_forced=is_forced, why=why):
            for node_id in sorted(ids):
                node = nodes.get(session, node_id, lock=True)
                if (
                    node.state in (NodeState.READY, NodeState.SUSPECT)
                    and node.is_wanted
                    and node.restart is None
                    and node.move_to is None
                ):
                    node.operation_id = update.operation_id
                    request_reimage(session, node, image=image, why=why, drain=drain, is_forced=is_forced, now=now)
        case _:
            pass


def _let_go(
    session: Session, update: SoftwareUpdate, group: InstanceGroup, places: list[Any] | tuple[LogicalId, ...] | None, now: datetime
) -> None:
    """Nodes that were held for this update take work again; None: all of the group's."""
    for node in nodes.held_for(session, group.id, update.id):
        if places is None or node.logical_id in places:
            hold(session, node, None, now=now)


def _nodes_seen(session: Session, cluster: Cluster) -> dict[str, list[plans.NodeSeen]]:
    """The newest node of every place, by its group."""
    busy = jobs.busy_nodes(session, cluster.id)
    is_healed = cluster.settings.get("NodeRecovery") != "None"
    seen: dict[str, list[plans.NodeSeen]] = {}
    for node in nodes.of_places(session, cluster.id):
        seen.setdefault(node.group_id, []).append(_node_seen(node, is_busy=node.id in busy, is_healed=is_healed))
    return seen


def _node_seen(node: Node, *, is_busy: bool, is_healed: bool) -> plans.NodeSeen:
    failures = int(node.facts.get("failures", 0))
    is_refilled = is_healed or node.is_replaced_on_request or failures > 0
    return plans.NodeSeen(
        id=node.id,
        place=node.logical_id,
        state=NodeState(node.state),
        image=node.image,
        instance_type=node.instance_type,
        created_at=node.created_at,
        is_wanted=node.is_wanted,
        is_busy=is_busy,
        is_obstructed=node.state is NodeState.REQUESTED and node.facts.get("obstacle") is not None,
        is_restarting=node.restart is not None or node.state in RESTARTING,
        is_moving=node.move_to is not None,
        was_lost=node.lost_because is not None and is_refilled,
        failures=failures,
        message=node.message,
    )


def _group_seen(group: InstanceGroup, row: GroupUpdate, seen: Mapping[str, list[plans.NodeSeen]]) -> plans.GroupSeen:
    policy = row.deployment.get("RollingUpdatePolicy", {})
    return plans.GroupSeen(
        id=group.id,
        name=group.name,
        state=UpdateState(row.state),
        image_from=row.image_from,
        image_to=row.image_to,
        forward=_batching(policy.get("MaximumBatchSize")),
        back=_batching(policy.get("RollbackMaximumBatchSize")),
        interval=timedelta(seconds=row.deployment.get("WaitIntervalInSeconds", 0)),
        patching=_patching(row.patching),
        batch=frozenset(row.batch),
        skipped=frozenset(row.skipped),
        batch_done_at=row.batch_done_at,
        is_watched=bool(row.deployment.get("AutoRollbackConfiguration")),
        target=group.target_count,
        nodes=tuple(seen.get(group.id, ())),
    )


def _batching(size: Mapping[str, Any] | None) -> Batching:
    match size:
        case {"Type": "INSTANCE_COUNT", "Value": value}:
            return Batching(count=value)
        case {"Type": "CAPACITY_PERCENTAGE", "Value": value}:
            return Batching(percentage=value)
        case _:
            return Batching()


def _patching(kept: Mapping[str, Any]) -> plans.Patching:
    until, drain_s = kept.get("until"), kept.get("drain_s")
    return plans.Patching(
        waits_for_idle=kept.get("waits_for_idle", False),
        as_one=kept.get("as_one", False),
        until=None if until is None else datetime.fromisoformat(until),
        drain=None if drain_s is None else timedelta(seconds=drain_s),
        is_forced=kept.get("is_forced", True),
    )
