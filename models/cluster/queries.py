"""Reads of clusters, groups and tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import collate, func, or_, select
from sqlalchemy.orm import Session

from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup, Tag
from models.errors import Forbidden, NotFound
from models.paging import Cut, Page, page
from models.session import ACROSS_TEAMS, locked, team_of


def find(session: Session, name_or_arn: str, *, lock: bool = False) -> Cluster:
    """The live cluster of this name or ARN; ``lock`` keeps its row for the rest of the transaction.

    Raises:
        NotFound: there is none, or it has been deleted.
        Forbidden: it is to be changed, and the session's caller is bound to a team that it does not belong to.
    """
    wanted = select(Cluster).where(
        or_(Cluster.name == name_or_arn, Cluster.arn == name_or_arn), Cluster.state != ClusterState.DELETED
    )
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Cluster", name=name_or_arn)
    team = team_of(session)
    if lock and team is not None and row.team != team:
        raise Forbidden(message=f"Cluster '{row.name}' belongs to everybody: a caller of team {team} may not change it.")
    return row


def get(session: Session, cluster_id: str, *, lock: bool = False) -> Cluster:
    """A cluster by its id, deleted or not. Raises NotFound."""
    wanted = select(Cluster).where(Cluster.id == cluster_id)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Cluster", name=cluster_id)
    return row


def groups(session: Session, cluster_id: str) -> list[InstanceGroup]:
    """A cluster's groups in the caller's order, without those that are gone."""
    wanted = select(InstanceGroup).where(InstanceGroup.cluster_id == cluster_id, InstanceGroup.state != GroupState.GONE)
    return list(session.scalars(wanted.order_by(InstanceGroup.position)))


def images_of(session: Session, cluster_ids: Sequence[str]) -> dict[str, set[str | None]]:
    """The releases that the groups of these clusters run, by the cluster's id."""
    if not cluster_ids:
        return {}
    wanted = select(InstanceGroup.cluster_id, InstanceGroup.image).where(
        InstanceGroup.cluster_id.in_(cluster_ids), InstanceGroup.state != GroupState.GONE
    )
    found: dict[str, set[str | None]] = {}
    for row in session.execute(wanted.distinct()):
        found.setdefault(row.cluster_id, set()).add(row.image)
    return found


def group(session: Session, group_id: str) -> InstanceGroup:
    """Raises NotFound."""
    row = session.get(InstanceGroup, group_id)
    if row is None:
        raise NotFound(kind="Instance group", name=group_id)
    return row


def instances_asked_for(session: Session, *, cluster_id: str | None = None) -> int:
    """How many instances all live clusters, or one, are to have, whoever they belong to.

    Until the caller's transaction ends nobody else is answered, so that two callers cannot pass a limit together.
    """
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended("instances", 0))))
    wanted = select(func.coalesce(func.sum(InstanceGroup.target_count), 0)).where(
        InstanceGroup.state.not_in((GroupState.GONE, GroupState.DELETING))
    )
    if cluster_id is not None:
        wanted = wanted.where(InstanceGroup.cluster_id == cluster_id)
    return session.execute(wanted.execution_options(**{ACROSS_TEAMS: True})).scalar_one()


def specification(group: InstanceGroup) -> dict[str, Any]:
    """What a group is wished to be, as it is kept for a rollback."""
    return {
        "instance_type": group.instance_type,
        "target_count": group.target_count,
        "min_count": group.min_count,
        "spec": group.spec,
    }


def tags(session: Session, resource_arn: str) -> Sequence[Tag]:
    return session.scalars(select(Tag).where(Tag.resource_arn == resource_arn).order_by(Tag.id)).all()


@dataclass(frozen=True)
class ClusterFilter:
    """Which clusters a listing shows. A bound in time is exclusive on both sides; None does not bound."""

    created_after: datetime | None = None
    created_before: datetime | None = None
    name_contains: str | None = None


def listed(session: Session, wanted: ClusterFilter, cut: Cut, *, by_name: bool = False) -> Page[Cluster]:
    """The clusters that are not deleted, by creation or by name."""
    statement = select(Cluster).where(Cluster.state != ClusterState.DELETED)
    if wanted.created_after is not None:
        statement = statement.where(Cluster.created_at > wanted.created_after)
    if wanted.created_before is not None:
        statement = statement.where(Cluster.created_at < wanted.created_before)
    if wanted.name_contains:
        statement = statement.where(Cluster.name.contains(wanted.name_contains, autoescape=True))
    if by_name:
        return page(session, statement, (collate(Cluster.name, "C"), Cluster.id), lambda row: (row.name, row.id), cut)
    return page(session, statement, (Cluster.created_at, Cluster.id), lambda row: (row.created_at, row.id), cut)


def on_eks(session: Session, eks_arn: str) -> Cluster | None:
    """The live cluster that holds this EKS cluster.

    Until the caller's transaction ends nobody else is answered for the same one, so that two clusters cannot both find it free.
    """
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(eks_arn, 0))))
    holds = Cluster.settings["Orchestrator"]["Eks"]["ClusterArn"].astext == eks_arn
    wanted = select(Cluster).where(holds, Cluster.state != ClusterState.DELETED)
    return session.scalars(wanted.execution_options(**{ACROSS_TEAMS: True})).first()
