"""Writes of spot capacity: what providers say, what callers wish, what reconcilers conclude."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models import events
from models.cluster.table import Cluster, InstanceGroup
from models.events import About, Level
from models.ids import ClusterId, GroupId, digest
from models.move import move, wake
from models.node.changes import record, settle_leaving, settle_staying
from models.node.states import NodeState
from models.node.table import Node
from models.notify import nudge
from models.session import locked
from models.spot import queries
from models.spot.ledger import Point
from models.spot.rates import Observed
from models.spot.states import NOTICE, NoticeKind, NoticeState
from models.spot.table import InterruptionRate, Notice, Price, SpotLoan, SpotPolicy

USUAL_NOTICE = timedelta(minutes=2)
"""How long before it takes a host EC2 says so; for an interruption whose deadline nobody told."""


@dataclass(frozen=True)
class Told:
    """What a node's provider said, as its agent saw it."""

    kind: NoticeKind
    at: datetime
    deadline: datetime | None
    source: str


@dataclass(frozen=True)
class PolicyWish:
    """``group_name`` ``""`` is for every spot group of the cluster that has no policy of its own."""

    group_name: str
    fallback_groups: Sequence[str]
    fall_back_after: timedelta
    max_price_per_hour: Decimal | None
    return_to_spot: bool
    return_after: timedelta
    leave_on_rebalance: bool


# ---------------------------------------------------------------------------------------------------------- notices


def report_notice(session: Session, node: Node, told: Told, *, now: datetime) -> None:
    """The provider of a locked node takes it, or may: from this moment on an interruption keeps new work away, and tells what runs there to leave.

    Told again, only another deadline is news; of several sources that say so the earliest counts. Notices are not locked here: their reconciler
    reads what it needs off the node.
    """
    if node.state is NodeState.GONE:
        return
    is_certain = told.kind is NoticeKind.INTERRUPTION
    deadline = told.deadline or (told.at + USUAL_NOTICE if is_certain else None)
    notice = queries.open_notice(session, node.id, told.kind) or _announce(session, node, told, deadline, now)
    said = queries.said(node, notice) | {told.source: deadline}
    _note_said(node, notice, said)
    if is_certain:
        settle_leaving(session, node, by=_earliest(said), why=notice.why, now=now)
    session.flush()
    nudge(session, Notice.KIND, notice.id)
    nudge(session, Cluster.KIND, node.cluster_id)


def report_notice_over(session: Session, node: Node, kind: NoticeKind, source: str, *, now: datetime) -> None:
    """This source has taken it back: the locked node stays, unless another source says so still, or somebody else has a reason for its leaving."""
    notice = queries.open_notice(session, node.id, kind)
    if notice is None:
        return
    said = queries.said(node, notice)
    said.pop(source, None)
    _note_said(node, notice, said)
    session.flush()
    if node.leave_why == notice.why and said:
        settle_leaving(session, node, by=_earliest(said), why=notice.why, now=now)
    elif node.leave_why == notice.why and node.is_wanted:
        settle_staying(session, node, why=f"Taken back: {notice.why}", now=now)
    nudge(session, Notice.KIND, notice.id)
    nudge(session, Cluster.KIND, node.cluster_id)


def settle_evacuating(session: Session, notice: Notice, node: Node, *, why: str, now: datetime) -> None:
    """What runs on the locked node is to leave for this notice's sake; of an interruption that was told with the report."""
    settle_left_for(session, notice, node, now=now)
    settle_notice(session, notice, NoticeState.EVACUATING, why=why, now=now)
    nudge(session, Cluster.KIND, notice.cluster_id)


def settle_left_for(session: Session, notice: Notice, node: Node, *, now: datetime) -> None:
    """What runs on the locked node is told to leave by the notice's deadline, unless it is told to for another reason: that one may be sooner."""
    if node.leave_why is None:
        settle_leaving(session, node, by=notice.deadline, why=notice.why, now=now)


def settle_notice(session: Session, notice: Notice, new: NoticeState, *, why: str, now: datetime) -> None:
    """What became of it. Both rows are locked. Its deadline is the newest that was told, and its sources are those that say so still."""
    node = session.get_one(Node, notice.node_id)
    notice.source = ", ".join(sorted(queries.said(node, notice))) or notice.source
    if node.leave_why == notice.why:
        notice.deadline = node.leave_by
    move(session, NOTICE, notice, new, now=now)
    level = Level.WARN if new is NoticeState.LOST else Level.INFO
    record(session, node, f"spot notice {new}", why, now, level=level)


def settle_taken(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """The locked node is let go, because its provider takes it: its place is another's, at once and without being asked for."""
    if not node.is_wanted:
        return
    node.is_wanted = False
    node.is_replaced_on_request = True
    node.lost_because = why
    record(session, node, "release requested", why, now)
    wake(session, node, now=now)
    nudge(session, Cluster.KIND, node.cluster_id)


def _note_said(node: Node, notice: Notice, said: Mapping[str, datetime | None]) -> None:
    """Who says so; of a notice that nobody stands by any more nothing is kept."""
    told, by_source = ({**node.facts.get(name, {})} for name in (queries.TOLD, queries.SAID))
    told.pop(notice.kind.value, None)
    by_source.pop(notice.kind.value, None)
    if said:
        told[notice.kind.value] = notice.id
        by_source[notice.kind.value] = {source: at and at.isoformat() for source, at in said.items()}
    node.facts = {**node.facts, queries.TOLD: told, queries.SAID: by_source}


def _earliest(said: Mapping[str, datetime | None]) -> datetime | None:
    return min((at for at in said.values() if at is not None), default=None)


def _announce(session: Session, node: Node, told: Told, deadline: datetime | None, now: datetime) -> Notice:
    is_certain = told.kind is NoticeKind.INTERRUPTION
    why = "Its provider takes the host back." if is_certain else "Its provider recommends leaving the host."
    cluster = session.get_one(Cluster, node.cluster_id)
    notice = Notice(
        id=f"notice-{digest(f'{node.id} {told.kind} {now.isoformat()}')[:17]}",
        cluster_id=node.cluster_id,
        node_id=node.id,
        kind=told.kind,
        state=NOTICE.initial,
        state_since=now,
        instance_type=node.instance_type,
        zone=node.zone or cluster.zone,
        source=told.source,
        why=why,
        announced_at=now,
        deadline=deadline,
    )
    session.add(notice)
    session.flush()
    record(session, node, f"spot {told.kind} announced", why, now, level=Level.WARN)
    wake(session, notice, now=now)
    return notice


# --------------------------------------------------------------------------------------------------- policies, loans


def request_policy(session: Session, cluster: Cluster, wish: PolicyWish, *, now: datetime) -> SpotPolicy:
    """Sets the policy of a locked cluster, or of one of its groups; the one before is forgotten."""
    key = (cluster.id, wish.group_name)
    policy = session.get(SpotPolicy, key) or SpotPolicy(cluster_id=cluster.id, group_name=wish.group_name)
    policy.fallback_groups = list(wish.fallback_groups)
    policy.fall_back_after_s = int(wish.fall_back_after.total_seconds())
    policy.max_price_per_hour = wish.max_price_per_hour
    policy.return_to_spot = wish.return_to_spot
    policy.return_after_s = int(wish.return_after.total_seconds())
    policy.leave_on_rebalance = wish.leave_on_rebalance
    policy.changed_at = now
    session.add(policy)
    _tell(session, cluster, wish.group_name or None, "spot policy set", f"The spot policy of {_whose(cluster, wish)} was set.", now)
    wake(session, cluster, now=now)
    return policy


def request_policy_dropped(session: Session, cluster: Cluster, policy: SpotPolicy, *, now: datetime) -> None:
    """Forgets a policy of a locked cluster. What was borrowed under it goes back."""
    session.delete(policy)
    session.flush()
    _tell(session, cluster, policy.group_name or None, "spot policy dropped", "The spot policy was dropped.", now)
    wake(session, cluster, now=now)


def settle_borrowed(session: Session, cluster: Cluster, group: InstanceGroup, lender: GroupId, *, why: str, now: datetime) -> None:
    """Another group runs one node in place of one of this group's. The cluster is locked."""
    session.add(SpotLoan(cluster_id=cluster.id, group_id=group.id, lender_id=lender, why=why, since=now))
    session.flush()
    _tell(session, cluster, group.name, "node borrowed", why, now, Level.WARN)


def settle_returned(session: Session, cluster: Cluster, loan_id: int, *, why: str, now: datetime) -> None:
    """The lender wants one node less again. The cluster is locked."""
    loan = session.scalars(locked(select(SpotLoan).where(SpotLoan.id == loan_id))).one()
    if loan.returned_at is not None:
        return
    loan.returned_at = now
    loan.returned_why = why
    session.flush()
    group = session.get(InstanceGroup, loan.group_id)
    _tell(session, cluster, group.name if group else None, "node given back", why, now)


def _whose(cluster: Cluster, wish: PolicyWish) -> str:
    return f"instance group {wish.group_name}" if wish.group_name else f"the spot groups of {cluster.name}"


def _tell(
    session: Session, cluster: Cluster, group_name: str | None, name: str, text: str, now: datetime, level: Level = Level.INFO
) -> None:
    about = About.GROUP if group_name else About.CLUSTER
    events.record(session, name, text, about=about, level=level, cluster_id=ClusterId(cluster.id), group_name=group_name, now=now)


# ----------------------------------------------------------------------------------------------------- prices, rates


def report_prices(session: Session, points: Iterable[Point]) -> int:
    """Adds to the series what is not in it yet; returns how much that was. A price that is known keeps its value: bills that were told stay true.

    A first look back over many types and zones may bring more prices than one statement can carry: they go in pages.
    """
    rows = [
        {"market": one.market, "instance_type": one.instance_type, "zone": one.zone, "at": one.at, "per_hour": one.per_hour}
        for one in sorted(points, key=lambda one: (one.at, one.market, one.instance_type, one.zone))
    ]
    if not rows:
        return 0
    added = insert(Price).on_conflict_do_nothing().returning(Price.id)
    return len(session.scalars(added, rows).all())


def settle_rate(session: Session, instance_type: str, zone: str, found: Observed, *, now: datetime) -> None:
    """How often hosts of the type are taken in the zone, as far as has been seen by now."""
    facts = {"per_hour": found.per_hour, "interruptions": found.interruptions, "hours": found.hours, "at": now}
    statement = insert(InterruptionRate).values(instance_type=instance_type, zone=zone, **facts)
    keys = [InterruptionRate.instance_type, InterruptionRate.zone]
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=facts))
