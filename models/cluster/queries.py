"""Reads of clusters, groups and tags."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup, Tag
from models.errors import NotFound


def find(session: Session, name_or_arn: str, *, lock: bool = False) -> Cluster:
    """The live cluster of this name or ARN; ``lock`` keeps its row for the rest of the transaction.

    Raises:
        NotFound: there is none, or it has been deleted.
    """
    wanted = select(Cluster).where(
        or_(Cluster.name == name_or_arn, Cluster.arn == name_or_arn), Cluster.state != ClusterState.DELETED
    )
    row = session.scalars(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Cluster", name=name_or_arn)
    return row


def groups(session: Session, cluster_id: str) -> list[InstanceGroup]:
    """A cluster's groups in the caller's order, without those that are gone."""
    wanted = select(InstanceGroup).where(InstanceGroup.cluster_id == cluster_id, InstanceGroup.state != GroupState.GONE)
    return list(session.scalars(wanted.order_by(InstanceGroup.position)))


def tags(session: Session, resource_arn: str) -> Sequence[Tag]:
    return session.scalars(select(Tag).where(Tag.resource_arn == resource_arn).order_by(Tag.id)).all()
