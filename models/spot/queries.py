"""Reads of spot capacity."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from models.cluster.states import GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.ids import NodeId
from models.job.table import Job, JobProcess
from models.node.states import CapacityType, NodeState
from models.node.table import Node
from models.paging import Cut, Page, page
from models.session import ACROSS_TEAMS
from models.spot.states import OPEN, NoticeKind, NoticeState
from models.spot.table import InterruptionRate, Notice, Price, SpotLoan, SpotPolicy

TOLD = "notices"
"""The fact of a node that names the notice of each kind which its agent tells of now."""
SAID = "notices_said"
"""The fact of a node that has, for each kind, who says so: the deadline by source. The end of an injected notice is no end of the provider's own."""


def open_notice(session: Session, node_id: str, kind: NoticeKind) -> Notice | None:
    """Not locked: whoever speaks for the node holds the node, and notices are locked before nodes."""
    wanted = select(Notice).where(Notice.node_id == node_id, Notice.kind == kind, Notice.state.in_(OPEN))
    return session.scalars(wanted).one_or_none()


def evacuated_nodes(session: Session, cluster_id: str) -> set[NodeId]:
    """The nodes of a cluster whose provider has said that it takes them, as long as that stands."""
    taken = Notice.state.in_(OPEN) & ((Notice.kind == NoticeKind.INTERRUPTION) | (Notice.state == NoticeState.EVACUATING))
    return set(session.scalars(select(Notice.node_id).where(Notice.cluster_id == cluster_id, taken)))


def notices(session: Session, cluster_id: str, cut: Cut, *, open_only: bool) -> Page[Notice]:
    wanted = select(Notice).where(Notice.cluster_id == cluster_id)
    if open_only:
        wanted = wanted.where(Notice.state.in_(OPEN))
    return page(session, wanted, (Notice.announced_at, Notice.id), lambda row: (row.announced_at, row.id), cut)


def policies(session: Session, cluster_id: str) -> list[SpotPolicy]:
    """The cluster's own first, then by group."""
    return list(session.scalars(select(SpotPolicy).where(SpotPolicy.cluster_id == cluster_id).order_by(SpotPolicy.group_name)))


def policy_of(found: Sequence[SpotPolicy], group_name: str) -> SpotPolicy | None:
    """Of these, which are one cluster's, the one that holds for a group."""
    by_group = {policy.group_name: policy for policy in found}
    return by_group.get(group_name) or by_group.get("")


def open_loans(session: Session, cluster_id: str) -> list[SpotLoan]:
    """Oldest first."""
    wanted = select(SpotLoan).where(SpotLoan.cluster_id == cluster_id, SpotLoan.returned_at.is_(None))
    return list(session.scalars(wanted.order_by(SpotLoan.since, SpotLoan.id)))


def standing_in(session: Session, cluster_id: str, names: Collection[str]) -> set[str]:
    """The names of the groups that run nodes in place of nodes of these groups now."""
    if not names:
        return set()
    borrowers = select(InstanceGroup.id).where(InstanceGroup.cluster_id == cluster_id, InstanceGroup.name.in_(names))
    lenders = select(SpotLoan.lender_id).where(SpotLoan.group_id.in_(borrowers), SpotLoan.returned_at.is_(None))
    return set(session.scalars(select(InstanceGroup.name).where(InstanceGroup.id.in_(lenders))))


def rates(session: Session, instance_types: Collection[str], zone: str) -> dict[str, float]:
    """Interruptions an hour of each of these types in a zone; types of which nothing is known are left out."""
    wanted = select(InterruptionRate).where(InterruptionRate.instance_type.in_(instance_types), InterruptionRate.zone == zone)
    return {row.instance_type: row.per_hour for row in session.scalars(wanted)}


# ------------------------------------------------------------------------------------------------------------ prices


def prices(session: Session, cut: Cut, *, market: CapacityType | None, instance_type: str | None, zone: str | None) -> Page[Price]:
    """The series as it was collected, by time."""
    wanted = select(Price)
    if market is not None:
        wanted = wanted.where(Price.market == market)
    if instance_type is not None:
        wanted = wanted.where(Price.instance_type == instance_type)
    if zone is not None:
        wanted = wanted.where(Price.zone == zone)
    return page(session, wanted, (Price.at, Price.id), lambda row: (row.at, row.id), cut)


def newest_prices(session: Session, instance_types: Collection[str], *, now: datetime) -> list[Price]:
    """The prices in force now, of each market, type and zone."""
    newest = select(Price).where(Price.instance_type.in_(instance_types), Price.at <= now)
    ordered = newest.order_by(Price.market, Price.instance_type, Price.zone, Price.at.desc())
    return list(session.scalars(ordered.ext(distinct_on(Price.market, Price.instance_type, Price.zone))))


def known_until(session: Session, instance_types: Collection[str]) -> datetime | None:
    """The earliest of the newest spot prices of these types: from here on something may be missing. None: of one of them nothing is known."""
    newest = select(Price.instance_type, func.max(Price.at)).where(
        Price.market == CapacityType.SPOT, Price.instance_type.in_(instance_types)
    )
    found = {row[0]: row[1] for row in session.execute(newest.group_by(Price.instance_type))}
    return min(found.values()) if set(found) >= set(instance_types) and found else None


def price_series(session: Session, instance_types: Collection[str], *, before: datetime) -> list[Price]:
    """Every price of these types that was in force before a time, in order."""
    wanted = select(Price).where(Price.instance_type.in_(instance_types), Price.at < before)
    return list(session.scalars(wanted.order_by(Price.market, Price.instance_type, Price.zone, Price.at)))


# ------------------------------------------------------------------------------------------------------------ lives


def spot_types(session: Session) -> list[str]:
    """The instance types that spot groups may have, and those of spot nodes that there are."""
    groups = session.scalars(select(InstanceGroup).where(InstanceGroup.state != GroupState.GONE))
    named = {name for group in groups if group.is_spot for name in group.instance_types}
    used = select(Node.instance_type).where(Node.capacity_type == CapacityType.SPOT, Node.state != NodeState.GONE)
    return sorted(named | set(session.scalars(used.distinct())))


def used_types(session: Session) -> list[str]:
    """The instance types of which there is, or was, a node."""
    return sorted(session.scalars(select(Node.instance_type).distinct()))


def launched(
    session: Session, *, since: datetime, until: datetime, cluster_id: str | None, ids: Collection[str] | None
) -> list[Node]:
    """The nodes that had a host at some time within a span: of a cluster, with these ids, or all. For sums, so of every team."""
    wanted = select(Node).where(
        Node.launched_at.is_not(None), Node.launched_at < until, or_(Node.state != NodeState.GONE, Node.state_since > since)
    )
    if cluster_id is not None:
        wanted = wanted.where(Node.cluster_id == cluster_id)
    if ids is not None:
        wanted = wanted.where(Node.id.in_(ids))
    return list(session.scalars(wanted.order_by(Node.id).execution_options(**{ACROSS_TEAMS: True})))


def zones(session: Session, cluster_ids: Collection[str]) -> dict[str, str]:
    """Where these clusters are. For sums, so of every team: a job may have run on a cluster that its team does not see, or sees no more."""
    wanted = select(Cluster).where(Cluster.id.in_(cluster_ids)).execution_options(**{ACROSS_TEAMS: True})
    return {row.id: row.zone for row in session.scalars(wanted)}


def on_nodes(session: Session, node_ids: Collection[str]) -> list[JobProcess]:
    """Every process that these nodes ever had. For sums, so of every team."""
    wanted = select(JobProcess).where(JobProcess.node_id.in_(node_ids))
    return list(session.scalars(wanted.order_by(JobProcess.id).execution_options(**{ACROSS_TEAMS: True})))


def nodes_of_jobs(session: Session, job_ids: Collection[str]) -> list[str]:
    """The nodes on which these jobs ever had a process."""
    wanted = select(JobProcess.node_id).where(JobProcess.job_id.in_(job_ids)).distinct()
    return sorted(session.scalars(wanted))


def noticed_among(session: Session, node_ids: Collection[str]) -> set[str]:
    """Those of these nodes whose provider has said that it takes them, and has not taken that back. For sums, so of every team."""
    wanted = select(Notice.node_id).where(
        Notice.node_id.in_(node_ids), Notice.kind == NoticeKind.INTERRUPTION, Notice.state != NoticeState.WITHDRAWN
    )
    return set(session.scalars(wanted.execution_options(**{ACROSS_TEAMS: True})))


def jobs_of(session: Session, *, cluster_id: str | None, team: str | None) -> list[str]:
    """The jobs that the caller sees, of a cluster and of a team, if these are named."""
    wanted = select(Job.id)
    if cluster_id is not None:
        wanted = wanted.where(Job.cluster_id == cluster_id)
    if team is not None:
        wanted = wanted.where(Job.team == team)
    return list(session.scalars(wanted.order_by(Job.id)))


def interruptions(session: Session, *, since: datetime, instance_types: Collection[str] | None = None) -> list[Notice]:
    """Every word of a provider since then that was not taken back."""
    wanted = select(Notice).where(Notice.announced_at >= since, Notice.state != NoticeState.WITHDRAWN)
    if instance_types is not None:
        wanted = wanted.where(Notice.instance_type.in_(instance_types))
    return list(session.scalars(wanted.order_by(Notice.announced_at, Notice.id)))


def reclaimed(session: Session, *, since: datetime) -> list[Node]:
    """Spot nodes that were taken without a notice since then: lost while they served, and not for anybody's wish."""
    noticed = select(Notice.node_id).where(Notice.kind == NoticeKind.INTERRUPTION, Notice.state != NoticeState.WITHDRAWN)
    wanted = select(Node).where(
        Node.capacity_type == CapacityType.SPOT,
        Node.lost_because.is_not(None),
        Node.state_since >= since,
        Node.id.not_in(noticed),
    )
    return [node for node in session.scalars(wanted.order_by(Node.id)) if was_reclaimed(node)]


def was_reclaimed(node: Node) -> bool:
    """Whether a spot node went without anybody's wish after it had served. Its peers may say so before its provider does, who is not always asked."""
    is_lost = node.lost_because is not None and not node.is_replaced_on_request and not node.facts.get("failures")
    return is_lost and node.capacity_type is CapacityType.SPOT


def is_told(node: Node, notice: Notice) -> bool:
    """Whether its agent still says so."""
    return bool(node.facts.get(TOLD, {}).get(notice.kind.value) == notice.id)


def said(node: Node, notice: Notice) -> dict[str, datetime | None]:
    """Which sources say so now, and by when each of them says that it happens."""
    if not is_told(node, notice):
        return {}
    by_source = node.facts.get(SAID, {}).get(notice.kind.value)
    if by_source is None:
        return {notice.source: notice.deadline}
    return {source: None if at is None else datetime.fromisoformat(at) for source, at in by_source.items()}
