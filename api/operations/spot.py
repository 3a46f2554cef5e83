"""Use-cases of spot capacity: policies, notices, prices, and what was saved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.states import GroupState
from models.cluster.table import Cluster
from models.errors import Invalid, NotFound
from models.job import queries as jobs
from models.job.states import ALIVE
from models.job.table import JobProcess
from models.node.states import CapacityType, NodeState
from models.node.table import Node
from models.paging import Cut, Page
from models.spot import changes, ledger, queries
from models.spot.changes import PolicyWish
from models.spot.ledger import Bill, Life, Point, Prices, Use
from models.spot.table import Notice, Price, SpotLoan, SpotPolicy

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Wanted:
    """Of a cluster, a job or a team, or of several of them at once; of all that the caller sees, if nothing is named."""

    cluster: str | None = None
    job_id: str | None = None
    team: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Savings:
    """Sums over hosts. ``by_type`` has a bill for each instance type and market; ``taken`` counts the hosts that their provider took back."""

    since: datetime
    until: datetime
    nodes: int
    taken: int
    total: Bill
    by_type: Mapping[tuple[str, CapacityType], Bill] = field(default_factory=dict)


@dataclass(frozen=True)
class LoanView:
    loan: SpotLoan
    borrower: str
    lender: str


@dataclass(frozen=True)
class PolicyView:
    """What a cluster's spot groups are told to do, and what was borrowed for them."""

    policies: Sequence[SpotPolicy]
    loans: Sequence[LoanView]


def put_policy(work: Work, cluster: str, wish: PolicyWish) -> SpotPolicy:
    """Sets the policy of a cluster's spot groups, or of one of them.

    Raises:
        NotFound: no such cluster.
        Invalid: a group that is not there, is not bought on the spot market, or would stand in for itself.
        Forbidden: a cluster that the caller may not change.
    """
    row = clusters.find(work.session, cluster, lock=True)
    _check(work, row, wish)
    return changes.request_policy(work.session, row, wish, now=work.now)


def drop_policy(work: Work, cluster: str, group_name: str) -> None:
    """Raises NotFound: no such cluster, or it has no such policy; Forbidden."""
    row = clusters.find(work.session, cluster, lock=True)
    policy = next((one for one in queries.policies(work.session, row.id) if one.group_name == group_name), None)
    if policy is None:
        raise NotFound(kind="Spot policy", name=group_name or row.name)
    changes.request_policy_dropped(work.session, row, policy, now=work.now)


def policies(work: Work, cluster: str) -> PolicyView:
    """Raises NotFound."""
    row = clusters.find(work.session, cluster)
    names = {group.id: group.name for group in clusters.groups(work.session, row.id)}
    loans = queries.open_loans(work.session, row.id)
    views = [LoanView(loan, names.get(loan.group_id, ""), names.get(loan.lender_id, "")) for loan in loans]
    return PolicyView(queries.policies(work.session, row.id), views)


def notices(work: Work, cluster: str, cut: Cut, *, open_only: bool) -> Page[Notice]:
    """Raises NotFound."""
    row = clusters.find(work.session, cluster)
    return queries.notices(work.session, row.id, cut, open_only=open_only)


def prices(work: Work, cut: Cut, *, market: CapacityType | None, instance_type: str | None, zone: str | None) -> Page[Price]:
    return queries.prices(work.session, cut, market=market, instance_type=instance_type, zone=zone)


def savings(work: Work, wanted: Wanted) -> Savings:
    """What hosts cost, and what they would have cost at the list price.

    By job, a host's seconds count for the jobs that had processes on it then, in even parts; a cluster's own sum has the idle seconds, too.

    Raises:
        NotFound: no such cluster or job.
        Invalid: the span ends before it begins.
    """
    until = min(wanted.until or work.now, work.now)
    since = wanted.since or _BEGINNING
    if since >= until:
        raise Invalid(message="Since must be earlier than Until, and not in the future.")
    cluster = None if wanted.cluster is None else clusters.find(work.session, wanted.cluster)
    job_ids = _jobs(work, wanted, cluster)
    node_ids = None if job_ids is None else queries.nodes_of_jobs(work.session, job_ids)
    rows = queries.launched(work.session, since=since, until=until, cluster_id=cluster.id if cluster else None, ids=node_ids)
    lives = _lives(work, rows, since, until)
    series = _series(work, {life.instance_type for life in lives}, until)
    bills = _whole(lives, series) if job_ids is None else _of_jobs(work, lives, set(job_ids), series)
    return _summed(work, lives, bills, rows, since, until)


def _check(work: Work, cluster: Cluster, wish: PolicyWish) -> None:
    groups = {group.name: group for group in clusters.groups(work.session, cluster.id) if group.state is not GroupState.DELETING}
    there = ", ".join(sorted(groups)) or "none"
    if wish.group_name and wish.group_name not in groups:
        raise Invalid(message=f"InstanceGroup: cluster {cluster.name} has no group '{wish.group_name}'; its groups are: {there}.")
    if wish.group_name and not groups[wish.group_name].is_spot:
        raise Invalid(
            message=f"InstanceGroup: group '{wish.group_name}' is not bought on the spot market: its CapacityRequirements do not say Spot."
        )
    for name in wish.fallback_groups:
        if name not in groups:
            raise Invalid(message=f"FallbackGroups: cluster {cluster.name} has no group '{name}'; its groups are: {there}.")
        if name == wish.group_name:
            raise Invalid(message=f"FallbackGroups: group '{name}' cannot stand in for itself.")
    if len(set(wish.fallback_groups)) < len(wish.fallback_groups):
        raise Invalid(message="FallbackGroups names a group twice.")


def _jobs(work: Work, wanted: Wanted, cluster: Cluster | None) -> list[str] | None:
    """Whose seconds are summed up; None: everybody's, and nobody's. A team's caller is told its jobs' share of what is not its team's alone."""
    if wanted.job_id is not None:
        found = [jobs.get(work.session, wanted.job_id).id]
        of = queries.jobs_of(work.session, cluster_id=cluster.id if cluster else None, team=wanted.team)
        return [job_id for job_id in found if job_id in of]
    is_shared = work.caller.team is not None and (cluster is None or cluster.team != work.caller.team)
    if wanted.team is None and not is_shared:
        return None
    return list(queries.jobs_of(work.session, cluster_id=cluster.id if cluster else None, team=wanted.team))


def _lives(work: Work, rows: Iterable[Node], since: datetime, until: datetime) -> list[Life]:
    zones = queries.zones(work.session, {row.cluster_id for row in rows})
    lives = []
    for row in rows:
        ended = row.state_since if row.state is NodeState.GONE else until
        begun = max(row.launched_at or since, since)
        zone = row.zone or zones[row.cluster_id]
        lives.append(Life(row.id, row.instance_type, zone, row.capacity_type, begun, max(begun, min(ended, until))))
    return lives


def _series(work: Work, types: Collection[str], until: datetime) -> Prices:
    rows = queries.price_series(work.session, types, before=until)
    return Prices.of(Point(row.market, row.instance_type, row.zone, row.at, row.per_hour) for row in rows)


def _whole(lives: Iterable[Life], series: Prices) -> dict[str, Bill]:
    return {life.node: ledger.bill(life, series) for life in lives}


def _of_jobs(work: Work, lives: Sequence[Life], job_ids: Collection[str], series: Prices) -> dict[str, Bill]:
    uses: dict[str, list[Use]] = defaultdict(list)
    for process in queries.on_nodes(work.session, [life.node for life in lives]):
        uses[process.node_id].append(Use(process.node_id, process.job_id, process.created_at, _end(process, work.now)))
    bills = {}
    for life in lives:
        shares = ledger.shares(life, uses[life.node], series)
        bills[life.node] = sum((part for job, part in shares.items() if job in job_ids), Bill())
    return bills


def _end(process: JobProcess, now: datetime) -> datetime:
    return now if process.state in ALIVE else process.state_since


def _summed(
    work: Work, lives: Sequence[Life], bills: Mapping[str, Bill], rows: Sequence[Node], since: datetime, until: datetime
) -> Savings:
    by_type: dict[tuple[str, CapacityType], Bill] = defaultdict(Bill)
    for life in lives:
        by_type[life.instance_type, life.market] += bills[life.node]
    noticed = queries.noticed_among(work.session, [row.id for row in rows])
    taken = [row for row in rows if row.id in noticed or queries.was_reclaimed(row)]
    first = min((life.since for life in lives), default=until) if since == _BEGINNING else since
    return Savings(first, until, len(lives), len(taken), sum(by_type.values(), Bill()), dict(by_type))
