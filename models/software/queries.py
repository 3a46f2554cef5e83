"""Reads of software updates."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from models.session import locked
from models.software.table import GroupUpdate, SoftwareUpdate


def open_of_cluster(session: Session, cluster_id: str) -> SoftwareUpdate | None:
    wanted = select(SoftwareUpdate).where(SoftwareUpdate.cluster_id == cluster_id, SoftwareUpdate.ended_at.is_(None))
    return session.scalars(wanted).one_or_none()


def of_update(session: Session, update_id: str) -> list[GroupUpdate]:
    """The groups of an update, in the order in which they were asked for."""
    wanted = select(GroupUpdate).where(GroupUpdate.update_id == update_id).order_by(GroupUpdate.created_at, GroupUpdate.group_id)
    return list(session.scalars(wanted))


def latest_of_groups(session: Session, group_ids: Sequence[str]) -> dict[str, GroupUpdate]:
    """The newest update of each of these groups, by the group's id; groups that never had one are left out."""
    wanted = select(GroupUpdate).where(GroupUpdate.group_id.in_(group_ids)).ext(distinct_on(GroupUpdate.group_id))
    return {row.group_id: row for row in session.scalars(wanted.order_by(GroupUpdate.group_id, GroupUpdate.created_at.desc()))}


def group_update(session: Session, update_id: str, group_id: str) -> GroupUpdate:
    """Locked."""
    wanted = select(GroupUpdate).where(GroupUpdate.update_id == update_id, GroupUpdate.group_id == group_id)
    return session.scalars(locked(wanted)).one()
