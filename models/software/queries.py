"""Reads of software updates."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import or_, select, tuple_
from sqlalchemy.orm import Session

from models.cluster.seen import SeenGroup
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.ids import ClusterId
from models.session import locked
from models.software.table import GroupUpdate, SoftwareUpdate


def open_of_cluster(session: Session, cluster_id: str) -> SoftwareUpdate | None:
    wanted = select(SoftwareUpdate).where(SoftwareUpdate.cluster_id == cluster_id, SoftwareUpdate.ended_at.is_(None))
    return session.scalars(wanted).one_or_none()


def clusters_with_schedules(session: Session) -> list[ClusterId]:
    """The clusters in service that have a group whose software is updated by itself."""
    has_schedule = or_(InstanceGroup.spec.has_key("ScheduledUpdateConfig"), InstanceGroup.spec.has_key("AutoPatchConfig"))
    wanted = select(Cluster.id).join(InstanceGroup, InstanceGroup.cluster_id == Cluster.id)
    wanted = wanted.where(Cluster.state == ClusterState.IN_SERVICE, InstanceGroup.state != GroupState.GONE, has_schedule)
    return list(session.scalars(wanted.distinct().order_by(Cluster.id)))


def watching(session: Session, alarm: str) -> list[SoftwareUpdate]:
    """The open updates that name an alarm."""
    names = GroupUpdate.deployment["AutoRollbackConfiguration"].contains([{"AlarmName": alarm}])
    wanted = select(SoftwareUpdate).where(
        SoftwareUpdate.ended_at.is_(None), SoftwareUpdate.id.in_(select(GroupUpdate.update_id).where(names))
    )
    return list(session.scalars(wanted))


def of_update(session: Session, update_id: str) -> list[GroupUpdate]:
    """The groups of an update, in the order in which they were asked for."""
    wanted = select(GroupUpdate).where(GroupUpdate.update_id == update_id).order_by(GroupUpdate.created_at, GroupUpdate.group_id)
    return list(session.scalars(wanted))


def latest_of_groups(session: Session, groups: Sequence[InstanceGroup | SeenGroup]) -> dict[str, GroupUpdate]:
    """The newest update of each of these groups, by the group's id; groups that never had one are left out, and cost nothing."""
    newest = [(group.update_id, group.id) for group in groups if group.update_id is not None]
    if not newest:
        return {}
    wanted = select(GroupUpdate).where(tuple_(GroupUpdate.update_id, GroupUpdate.group_id).in_(newest))
    return {row.group_id: row for row in session.scalars(wanted)}


def group_update(session: Session, update_id: str, group_id: str) -> GroupUpdate:
    """Locked."""
    wanted = select(GroupUpdate).where(GroupUpdate.update_id == update_id, GroupUpdate.group_id == group_id)
    return session.scalars(locked(wanted)).one()
