"""What a cluster's plan sees of the spot market: the order of types, policies, loans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy.orm import Session

from models.cluster.table import Cluster, InstanceGroup
from models.node.states import CapacityType
from models.spot import queries as spot
from models.spot.table import SpotPolicy
from workers.plans.cluster_seen import LoanSeen, PolicySeen
from workers.plans.spot_types import Market, order


@dataclass(frozen=True)
class SpotSeen:
    """Of one group; as ``GroupSeen`` has it."""

    types: tuple[str, ...]
    too_dear: Mapping[str, str] = field(default_factory=dict)
    policy: PolicySeen | None = None
    loans: tuple[LoanSeen, ...] = ()
    lent: int = 0


def seen_spots(session: Session, cluster: Cluster, groups: Sequence[InstanceGroup], now: datetime) -> dict[str, SpotSeen]:
    """By group. A cluster that has no spot group costs no query."""
    if not any(group.is_spot for group in groups):
        return {group.id: SpotSeen(group.instance_types) for group in groups}
    policies = spot.policies(session, cluster.id)
    loans = spot.open_loans(session, cluster.id)
    types = sorted({name for group in groups if group.is_spot for name in group.instance_types})
    market = _market(session, cluster, types, now)
    seen: dict[str, SpotSeen] = {}
    for group in groups:
        lent = sum(loan.lender_id == group.id for loan in loans)
        if not group.is_spot:
            seen[group.id] = SpotSeen(group.instance_types, lent=lent)
            continue
        policy = spot.policy_of(policies, group.name)
        found = order(group.instance_types, Market(*market, policy.max_price_per_hour if policy else None))
        own = tuple(LoanSeen(loan.id, loan.lender_id, loan.since) for loan in loans if loan.group_id == group.id)
        seen[group.id] = SpotSeen(found.types, found.too_dear, _policy_seen(policy), own, lent)
    return seen


def _market(
    session: Session, cluster: Cluster, types: Sequence[str], now: datetime
) -> tuple[dict[str, Decimal], dict[str, Decimal], dict[str, float]]:
    prices: dict[CapacityType, dict[str, list[Decimal]]] = defaultdict(lambda: defaultdict(list))
    for price in spot.newest_prices(session, types, now=now):
        prices[price.market][price.instance_type].append(price.per_hour)
    lowest = {name: min(found) for name, found in prices[CapacityType.SPOT].items()}
    listed = {name: min(found) for name, found in prices[CapacityType.ON_DEMAND].items()}
    return lowest, listed, spot.rates(session, types, cluster.zone)


def _policy_seen(policy: SpotPolicy | None) -> PolicySeen | None:
    if policy is None:
        return None
    return PolicySeen(
        fallback_groups=tuple(policy.fallback_groups),
        fall_back_after=timedelta(seconds=policy.fall_back_after_s),
        return_to_spot=policy.return_to_spot,
        return_after=timedelta(seconds=policy.return_after_s),
    )
