"""Writes of clusters: what callers ask for, what reconcilers conclude."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from models import events
from models.cluster import queries
from models.cluster.states import CLUSTER, GROUP, ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup, Tag, types_of
from models.errors import AlreadyExists, NotFound
from models.events import About, Level
from models.ids import cluster_arn, new_cluster_id, new_group_id
from models.move import advance, move, wake
from models.operation import queries as operations
from models.operation.changes import request_operation, settle_all_done, settle_done
from models.operation.states import OperationKind
from models.quota import changes as quotas
from models.scheduler import changes as schedulers
from models.session import breaks


@dataclass(frozen=True)
class GroupSpec:
    """An instance group as it is wished for. ``spec`` is the caller's specification by wire name, verbatim; ``image`` the release of a new group's nodes.

    ``instance_type`` is the preferred one of a flexible group.
    """

    name: str
    instance_type: str
    count: int
    min_count: int
    spec: dict[str, Any]
    image: str | None = None
    is_restricted: bool = False

    @property
    def types(self) -> tuple[str, ...]:
        return types_of(self.spec) or (self.instance_type,)


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster as it is wished for. ``settings`` holds the cluster-wide members that the caller sent, by wire name."""

    name: str
    is_continuous: bool
    settings: dict[str, Any]
    groups: tuple[GroupSpec, ...]
    tags: dict[str, str] = field(default_factory=dict)
    team: str | None = None


def request_cluster(session: Session, spec: ClusterSpec, *, region: str, account_id: str, now: datetime) -> Cluster:
    """Writes the wish for a new cluster.

    Raises:
        AlreadyExists: a cluster of this name is not yet deleted.
    """
    cluster_id = new_cluster_id()
    cluster = Cluster(
        id=cluster_id,
        arn=cluster_arn(region, account_id, cluster_id),
        name=spec.name,
        team=spec.team,
        state=CLUSTER.initial,
        state_since=now,
        settings=spec.settings,
        is_continuous=spec.is_continuous,
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(cluster)
    except IntegrityError as error:
        if breaks(error, "uq_cluster_live_name"):
            raise AlreadyExists(kind="Cluster", name=spec.name) from error
        raise
    for position, group in enumerate(spec.groups):
        _add_group(session, cluster, group, position, now)
    put_tags(session, cluster.arn, spec.tags)
    wanted = {group.name: _counts(0, group.count, group.min_count) for group in spec.groups}
    request_operation(session, cluster.id, OperationKind.SCALING, details=wanted, now=now)
    _record(session, cluster, "creation requested", f"Creation of cluster {spec.name} started.", now)
    wake(session, cluster, now=now)
    return cluster


def request_update(
    session: Session,
    cluster: Cluster,
    *,
    groups: Sequence[GroupSpec],
    to_delete: Sequence[str],
    settings: Mapping[str, Any],
    current: Mapping[str, int] | None = None,
    now: datetime,
) -> None:
    """Merges the wish into a locked cluster: listed groups are changed or added by name, others stay as they are.

    A classic cluster goes to updating; a continuous one stays in service. ``current`` is how many nodes of each group serve, by the group's id.

    Raises:
        NotFound: a group that is to be deleted does not exist.
        IllegalMove: the cluster, or a listed group, may not be updated now.
    """
    changes = _change_groups(session, cluster, groups, to_delete, current or {}, now)
    cluster.settings = {**cluster.settings, **settings}
    cluster.failure_message = None
    if changes:
        request_operation(session, cluster.id, OperationKind.SCALING, details=changes, now=now)
    _record(session, cluster, "update requested", f"Update of cluster {cluster.name} started.", now)
    if cluster.is_continuous and cluster.state is ClusterState.IN_SERVICE:
        wake(session, cluster, now=now)
    else:
        move(session, CLUSTER, cluster, ClusterState.UPDATING, now=now)


def request_deletion(session: Session, cluster: Cluster, *, now: datetime) -> None:
    """Asks for the end of a locked cluster and all its nodes. Asking again changes nothing."""
    if cluster.state is ClusterState.DELETING:
        return
    request_operation(session, cluster.id, OperationKind.DELETION, details={}, now=now)
    for group in queries.groups(session, cluster.id):
        if group.state is not GroupState.DELETING:
            advance(GROUP, group, GroupState.DELETING, now=now)
    _record(session, cluster, "deletion requested", f"Deletion of cluster {cluster.name} started.", now)
    move(session, CLUSTER, cluster, ClusterState.DELETING, now=now)


def settle_cluster(session: Session, cluster: Cluster, new: ClusterState, *, why: str, now: datetime) -> None:
    """Concludes a cluster's state. In service, what its groups are specified as becomes what a rollback returns to."""
    move(session, CLUSTER, cluster, new, now=now)
    if new is ClusterState.DELETED:
        schedulers.settle_end(session, cluster.id, now=now)
        quotas.settle_end(session, cluster.id, now=now)
    if new is ClusterState.IN_SERVICE:
        for group in queries.groups(session, cluster.id):
            _keep(cluster, group)
    failed = new in (ClusterState.FAILED, ClusterState.ROLLING_BACK)
    if failed:
        cluster.failure_message = why
    _record(session, cluster, f"cluster {new}", why, now, level=Level.ERROR if failed else Level.INFO)
    if new is ClusterState.DELETED:
        settle_all_done(session, cluster.id, now=now)


def settle_group(session: Session, cluster: Cluster, group: InstanceGroup, new: GroupState, *, why: str, now: datetime) -> None:
    """Concludes a group's state."""
    advance(GROUP, group, new, now=now)
    _keep(cluster, group)
    level = {GroupState.FAILED: Level.ERROR, GroupState.DEGRADED: Level.WARN}.get(new, Level.INFO)
    _record_group(session, cluster, group, f"group {new}", why, now, level=level)


def settle_rollback(group: InstanceGroup, *, now: datetime) -> None:
    """Returns a group to what it was when last in service; a group that never was is to be deleted."""
    if group.settled is None:
        group.target_count = 0
        if group.state is not GroupState.DELETING:
            advance(GROUP, group, GroupState.DELETING, now=now)
        return
    group.instance_type = group.settled["instance_type"]
    group.target_count = group.settled["target_count"]
    group.min_count = group.settled["min_count"]
    group.spec = group.settled["spec"]


def settle_minimum_missed(session: Session, cluster: Cluster, group: InstanceGroup, *, why: str, now: datetime) -> None:
    """The group goes back to the counts with which it was last in service, to none if it never was, and serves with what it has."""
    before = group.settled or {"target_count": 0, "min_count": 0}
    group.target_count = before["target_count"]
    group.min_count = before["min_count"]
    _record_group(session, cluster, group, "minimum missed", why, now, level=Level.ERROR)
    settle_group(session, cluster, group, GroupState.IN_SERVICE, why=f"The group is back at {group.target_count} nodes.", now=now)


def settle_operations(session: Session, cluster: Cluster, *, now: datetime) -> None:
    """Everything that was asked for has been reached."""
    for operation in operations.open_of_cluster(session, cluster.id):
        settle_done(session, operation.id, now=now)


def put_tags(session: Session, resource_arn: str, tags: Mapping[str, str]) -> None:
    """Adds tags, or overwrites the values of present ones."""
    for key, value in tags.items():
        statement = insert(Tag).values(resource_arn=resource_arn, key=key, value=value)
        session.execute(
            statement.on_conflict_do_update(index_elements=[Tag.resource_arn, Tag.key], set_={"value": statement.excluded.value})
        )


def drop_tags(session: Session, resource_arn: str, keys: Sequence[str]) -> None:
    session.execute(delete(Tag).where(Tag.resource_arn == resource_arn, Tag.key.in_(keys)))


def _add_group(session: Session, cluster: Cluster, spec: GroupSpec, position: int, now: datetime) -> None:
    session.add(
        InstanceGroup(
            id=new_group_id(),
            cluster_id=cluster.id,
            name=spec.name,
            position=position,
            state=GROUP.initial,
            state_since=now,
            instance_type=spec.instance_type,
            target_count=spec.count,
            min_count=spec.min_count,
            minimum_since=now if spec.min_count else None,
            is_restricted=spec.is_restricted,
            spec=spec.spec,
            image=spec.image,
            image_wanted=spec.image,
            created_at=now,
        )
    )
    session.flush()


def _change_groups(
    session: Session,
    cluster: Cluster,
    groups: Sequence[GroupSpec],
    to_delete: Sequence[str],
    current: Mapping[str, int],
    now: datetime,
) -> dict[str, Any]:
    """Changes, adds and ends groups; returns the counts before and wanted, by name."""
    present = {group.name: group for group in queries.groups(session, cluster.id)}
    changes = {}
    position = 1 + max((group.position for group in present.values()), default=-1)
    for spec in groups:
        if spec.name in present:
            before = _before(present[spec.name], current)
            changes[spec.name] = _change_group(cluster, present[spec.name], spec, now) | before
        else:
            _add_group(session, cluster, spec, position + len(changes), now)
            changes[spec.name] = _counts(0, spec.count, spec.min_count)
    for name in to_delete:
        if name not in present:
            raise NotFound(kind="Instance group", name=name)
        if present[name].state is not GroupState.DELETING:
            advance(GROUP, present[name], GroupState.DELETING, now=now)
        changes[name] = _counts(present[name].target_count, 0, 0) | _before(present[name], current)
    return changes


def _change_group(cluster: Cluster, group: InstanceGroup, spec: GroupSpec, now: datetime) -> dict[str, Any]:
    before = _counts(group.target_count, spec.count, spec.min_count)
    is_resized = (group.target_count, group.min_count) != (spec.count, spec.min_count)
    if cluster.state is ClusterState.IN_SERVICE and group.state in (GroupState.IN_SERVICE, GroupState.DEGRADED):
        group.settled = queries.specification(group)  # it serves as it is until now, whatever has changed its counts
    if spec.min_count != group.min_count or group.state not in (GroupState.CREATING, GroupState.UPDATING):
        group.minimum_since = now
    group.target_count = spec.count
    group.min_count = spec.min_count
    group.instance_type = spec.instance_type
    group.spec = spec.spec
    # A failed group is tried again, whatever was changed; one that is going away refuses, whatever was asked.
    is_moved = is_resized or group.state in (GroupState.FAILED, GroupState.DELETING)
    if is_moved and group.state not in (GroupState.CREATING, GroupState.UPDATING):
        advance(GROUP, group, GroupState.UPDATING, now=now)
    return before


def request_spare_pool(session: Session, cluster: Cluster, group: InstanceGroup, nodes: int | None, *, now: datetime) -> None:
    """So many free nodes of the group are kept for what is lost; None: as many as the planner thinks worth while. The cluster is locked."""
    group.sizes_spares = nodes is None
    group.spare_nodes = (group.spare_nodes or 0) if nodes is None else nodes
    wish = "as many as its faults make worth while" if nodes is None else f"{nodes}"
    text = f"Free nodes of instance group {group.name} that are kept for what is lost: {wish}."
    _record_group(session, cluster, group, "spare pool set", text, now, level=Level.INFO)


def settle_spare_pool(session: Session, cluster: Cluster, group: InstanceGroup, nodes: int, *, why: str, now: datetime) -> None:
    """How many the planner has found worth while. The cluster is locked."""
    if not group.sizes_spares or group.spare_nodes == nodes:
        return
    group.spare_nodes = nodes
    _record_group(session, cluster, group, "spare pool sized", why, now, level=Level.INFO)


def _keep(cluster: Cluster, group: InstanceGroup) -> None:
    """Remembers what a rollback returns to. Not before the cluster serves: a classic creation that fails takes back every group of it."""
    if cluster.state is ClusterState.IN_SERVICE and group.state is GroupState.IN_SERVICE:
        group.settled = queries.specification(group)


def _before(group: InstanceGroup, current: Mapping[str, int]) -> dict[str, Any]:
    return {"current": current.get(group.id, 0), "minimum_before": group.min_count}


def _counts(before: int, wanted: int, minimum: int) -> dict[str, Any]:
    return {"before": before, "wanted": wanted, "minimum": minimum}


def _record(session: Session, cluster: Cluster, name: str, text: str, now: datetime, *, level: Level = Level.INFO) -> None:
    details = {"failure": cluster.failure_message} if level is Level.ERROR else {}
    events.record(
        session,
        name,
        text,
        about=About.CLUSTER,
        level=level,
        cluster_id=cluster.id,
        operation_id=operations.current(session, cluster.id),
        details=details,
        now=now,
    )


def _record_group(
    session: Session, cluster: Cluster, group: InstanceGroup, name: str, text: str, now: datetime, *, level: Level
) -> None:
    failure = {"failure": text} if level is Level.ERROR else {}
    events.record(
        session,
        name,
        text,
        about=About.GROUP,
        level=level,
        cluster_id=cluster.id,
        group_name=group.name,
        operation_id=operations.current(session, cluster.id),
        details={"target": group.target_count, "minimum": group.min_count} | failure,
        now=now,
    )
