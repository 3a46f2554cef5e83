"""Operations of spot capacity: policies, notices, prices, savings."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

from pydantic import Field, StringConstraints

from api.operations import spot
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, Moment, NextToken, Wire, word
from models.errors import Forbidden, Invalid, NotFound
from models.node.states import CapacityType
from models.paging import Cut
from models.spot.changes import PolicyWish
from models.spot.ledger import Bill, shown
from models.spot.table import Notice, Price, SpotPolicy

_HOUR_US = 3_600_000_000
ClusterName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
GroupName = Annotated[str, StringConstraints(min_length=1, max_length=63)]
Dollars = Annotated[str, Field(description="Dollars, as a decimal number: a sum is told exactly.")]
_DAY_S = 86_400


class CapacityWord(StrEnum):
    ON_DEMAND = "OnDemand"
    SPOT = "Spot"


class SpotPolicyWanted(Asked):
    """``instance_group`` names one spot group; without it the policy is for every spot group of the cluster that has none of its own.

    When a node has been asked for in vain for ``fall_back_after_seconds``, as every type of its group, the first of ``fallback_groups`` that has
    hosts runs one in its place. It is given back when spot has served again for ``return_after_seconds``; never, if not ``return_to_spot``.
    """

    cluster: ClusterName
    instance_group: GroupName | None = None
    fallback_groups: Annotated[list[GroupName], Field(max_length=20)] = Field(default_factory=list)
    fall_back_after_seconds: Annotated[int, Field(ge=0, le=_DAY_S)] = 120
    max_price_per_hour: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?$")] | None = None
    return_to_spot: bool = True
    return_after_seconds: Annotated[int, Field(ge=0, le=_DAY_S)] = 600
    leave_on_rebalance: bool = False


class SpotPolicyNamed(Asked):
    cluster: ClusterName
    instance_group: GroupName | None = None


class SpotPoliciesWanted(Asked):
    cluster: ClusterName


class SpotPolicyShape(Wire):
    instance_group: str | None
    fallback_groups: tuple[str, ...]
    fall_back_after_seconds: int
    max_price_per_hour: str | None
    return_to_spot: bool
    return_after_seconds: int
    leave_on_rebalance: bool
    changed_at: datetime


class SpotLoanShape(Wire):
    """The group ``lender`` runs one node more than its target, in place of one of ``borrower``."""

    borrower: str
    lender: str
    since: datetime
    why: str


class SpotPolicyList(Wire):
    policies: tuple[SpotPolicyShape, ...]
    loans: tuple[SpotLoanShape, ...]


class SpotPolicyDropped(Wire):
    instance_group: str | None


class SpotNoticesWanted(Asked):
    cluster: ClusterName
    open: bool = False
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class SpotNoticeShape(Wire):
    """``deadline`` is when the host is taken; null if nobody has said."""

    notice_id: str
    node_id: str
    kind: str
    state: str
    instance_type: str
    zone: str
    source: str
    why: str
    announced_at: datetime
    deadline: datetime | None
    since: datetime


class SpotNoticeList(Wire):
    notices: tuple[SpotNoticeShape, ...]
    next_token: str | None = None


class SpotPricesWanted(Asked):
    """Of one type or zone, if they are named. ``capacity_type`` OnDemand shows list prices."""

    capacity_type: CapacityWord = CapacityWord.SPOT
    instance_type: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    zone: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class SpotPriceShape(Wire):
    """What an hour costs from ``at`` on, until the next price of the same type and zone. ``zone`` null: in every zone."""

    capacity_type: CapacityWord
    instance_type: str
    zone: str | None
    at: datetime
    price_per_hour: Dollars


class SpotPriceList(Wire):
    prices: tuple[SpotPriceShape, ...]
    next_token: str | None = None


class SpotSavingsWanted(Asked):
    """Of a cluster, a job or a team, and of a span of time; of all that the caller sees, if nothing is named."""

    cluster: ClusterName | None = None
    job_id: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    team: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    since: Moment | None = None
    until: Moment | None = None


class SpotTypeShape(Wire):
    instance_type: str
    capacity_type: CapacityWord
    node_hours: float
    cost: Dollars
    saved: Dollars


class SpotSavingsShape(Wire):
    """``spot_cost`` is what spot hosts cost at the prices in force, ``list_cost`` what the same seconds cost at the list price, ``saved`` the difference.

    ``saved_share`` is of ``list_cost``, null where there is none. Seconds for which no price is known are in ``unpriced_hours`` and in no sum; spot
    hours without a list price are in ``unlisted_hours`` and neither in ``list_cost`` nor in ``saved``.
    """

    since: datetime
    until: datetime
    nodes: int
    interruptions: int
    spot_hours: float
    on_demand_hours: float
    unpriced_hours: float
    unlisted_hours: float
    spot_cost: Dollars
    on_demand_cost: Dollars
    total_cost: Dollars
    list_cost: Dollars
    saved: Dollars
    saved_share: float | None
    by_type: tuple[SpotTypeShape, ...]


def put_policy(work: Work, asked: SpotPolicyWanted) -> SpotPolicyShape:
    """Says how a cluster's spot groups are kept going: which groups stand in, what an hour may cost, and when spot takes over again."""
    wish = PolicyWish(
        group_name=asked.instance_group or "",
        fallback_groups=asked.fallback_groups,
        fall_back_after=timedelta(seconds=asked.fall_back_after_seconds),
        max_price_per_hour=None if asked.max_price_per_hour is None else Decimal(asked.max_price_per_hour),
        return_to_spot=asked.return_to_spot,
        return_after=timedelta(seconds=asked.return_after_seconds),
        leave_on_rebalance=asked.leave_on_rebalance,
    )
    return _policy(spot.put_policy(work, asked.cluster, wish))


def drop_policy(work: Work, asked: SpotPolicyNamed) -> SpotPolicyDropped:
    """Forgets a spot policy. What other groups run for its sake goes back."""
    spot.drop_policy(work, asked.cluster, asked.instance_group or "")
    return SpotPolicyDropped(instance_group=asked.instance_group)


def list_policies(work: Work, asked: SpotPoliciesWanted) -> SpotPolicyList:
    """The spot policies of a cluster, and what other groups run in place of its spot groups now."""
    found = spot.policies(work, asked.cluster)
    loans = tuple(
        SpotLoanShape(borrower=one.borrower, lender=one.lender, since=one.loan.since, why=one.loan.why) for one in found.loans
    )
    return SpotPolicyList(policies=tuple(map(_policy, found.policies)), loans=loans)


def list_notices(work: Work, asked: SpotNoticesWanted) -> SpotNoticeList:
    """What providers have said of a cluster's nodes, and what became of it, oldest first."""
    found = spot.notices(work, asked.cluster, Cut(limit=asked.max_results, cursor=asked.next_token), open_only=asked.open)
    return SpotNoticeList(notices=tuple(map(_notice, found.rows)), next_token=found.cursor)


def list_prices(work: Work, asked: SpotPricesWanted) -> SpotPriceList:
    """The prices that were collected, oldest first."""
    cut = Cut(limit=asked.max_results, cursor=asked.next_token)
    market = CapacityType[asked.capacity_type.name]
    found = spot.prices(work, cut, market=market, instance_type=asked.instance_type, zone=asked.zone)
    return SpotPriceList(prices=tuple(map(_price, found.rows)), next_token=found.cursor)


def savings(work: Work, asked: SpotSavingsWanted) -> SpotSavingsShape:
    """What hosts cost by the second at the prices in force, beside the list price: of a cluster, a job or a team."""
    wanted = spot.Wanted(asked.cluster, asked.job_id, asked.team, asked.since, asked.until)
    found = spot.savings(work, wanted)
    total = found.total
    return SpotSavingsShape(
        since=found.since,
        until=found.until,
        nodes=found.nodes,
        interruptions=found.taken,
        spot_hours=_hours(total.spot_us),
        on_demand_hours=_hours(total.on_demand_us),
        unpriced_hours=_hours(total.unpriced_us),
        unlisted_hours=_hours(total.unlisted_us),
        spot_cost=str(shown(total.spot)),
        on_demand_cost=str(shown(total.on_demand)),
        total_cost=str(shown(total.spot + total.on_demand)),
        list_cost=str(shown(total.listed)),
        saved=str(shown(total.saved)),
        saved_share=round(float(total.saved / total.listed), 4) if total.listed else None,
        by_type=tuple(_of_type(name, market, bill) for (name, market), bill in sorted(found.by_type.items())),
    )


def _of_type(name: str, market: CapacityType, bill: Bill) -> SpotTypeShape:
    return SpotTypeShape(
        instance_type=name,
        capacity_type=CapacityWord[market.name],
        node_hours=_hours(bill.spot_us + bill.on_demand_us),
        cost=str(shown(bill.spot + bill.on_demand)),
        saved=str(shown(bill.saved)),
    )


def _hours(microseconds: Fraction) -> float:
    return round(float(microseconds / _HOUR_US), 6)


def _policy(row: SpotPolicy) -> SpotPolicyShape:
    return SpotPolicyShape(
        instance_group=row.group_name or None,
        fallback_groups=tuple(row.fallback_groups),
        fall_back_after_seconds=row.fall_back_after_s,
        max_price_per_hour=None if row.max_price_per_hour is None else f"{row.max_price_per_hour:f}",
        return_to_spot=row.return_to_spot,
        return_after_seconds=row.return_after_s,
        leave_on_rebalance=row.leave_on_rebalance,
        changed_at=row.changed_at,
    )


def _notice(row: Notice) -> SpotNoticeShape:
    return SpotNoticeShape(
        notice_id=row.id,
        node_id=row.node_id,
        kind=word(row.kind),
        state=word(row.state),
        instance_type=row.instance_type,
        zone=row.zone,
        source=row.source,
        why=row.why,
        announced_at=row.announced_at,
        deadline=row.deadline,
        since=row.state_since,
    )


def _price(row: Price) -> SpotPriceShape:
    return SpotPriceShape(
        capacity_type=CapacityWord[row.market.name],
        instance_type=row.instance_type,
        zone=row.zone or None,
        at=row.at,
        price_per_hour=f"{row.per_hour:f}",
    )


SPOT: OwnTable = (
    Own(
        "PutSpotPolicy",
        "POST",
        "/v1/spot-policies",
        SpotPolicyWanted,
        SpotPolicyShape,
        put_policy,
        errors=(NotFound, Invalid, Forbidden),
    ),
    Own(
        "DeleteSpotPolicy",
        "DELETE",
        "/v1/spot-policies",
        SpotPolicyNamed,
        SpotPolicyDropped,
        drop_policy,
        errors=(NotFound, Forbidden),
    ),
    Own("ListSpotPolicies", "GET", "/v1/spot-policies", SpotPoliciesWanted, SpotPolicyList, list_policies, errors=(NotFound,)),
    Own(
        "ListSpotNotices",
        "GET",
        "/v1/spot-notices",
        SpotNoticesWanted,
        SpotNoticeList,
        list_notices,
        page_of="notices",
        errors=(NotFound,),
    ),
    Own("ListSpotPrices", "GET", "/v1/spot-prices", SpotPricesWanted, SpotPriceList, list_prices, page_of="prices"),
    Own("GetSpotSavings", "GET", "/v1/spot-savings", SpotSavingsWanted, SpotSavingsShape, savings, errors=(NotFound, Invalid)),
)
