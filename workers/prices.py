"""What hosts cost is collected now and then, and how often they were taken is worked out. Safe to repeat, to run twice at once, and to begin anew.

The series in the database is its own memory: each time the source is asked for what has happened since the newest price that is known, so what a control
plane slept through is caught up with, and what comes twice is in the series once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy.orm import Session

from models.clock import Clock
from models.cluster.table import Cluster
from models.node.states import CapacityType, NodeState
from models.session import Sessions, unit_of_work
from models.spot import queries as spot
from models.spot.changes import report_prices, settle_rate
from models.spot.ledger import ANY_ZONE, Point
from models.spot.rates import REBALANCE_WEIGHT, WINDOW, Observed, observe
from models.spot.states import NoticeKind
from models.spot.table import Price
from workers.providers.base import ProviderError
from workers.providers.prices import Prices

log = logging.getLogger(__name__)

LOOK_BACK = timedelta(days=14)
"""How far back prices are asked for of a type of which none is known."""
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
"""The first list price that is known of a type is taken to have held before: list prices change rarely, and hosts ran before anybody asked."""


def collect(sessions: Sessions, clock: Clock, prices: Prices) -> int:
    """Adds the prices that are news; returns how many. The source is asked in no transaction."""
    now = clock.now()
    with unit_of_work(sessions) as session:
        wanted = spot.spot_types(session)
        used = sorted({*wanted, *spot.used_types(session)})
        since = spot.known_until(session, wanted) or now - LOOK_BACK
        known = spot.newest_prices(session, used, now=now)
    try:
        told = prices.spot(wanted, since=since) if wanted else ()
        listed = [(name, price) for name in used if (price := prices.on_demand(name)) is not None]
    except ProviderError as error:
        log.warning("prices cannot be had now: %s", error)
        return 0
    points = [Point(CapacityType.SPOT, one.instance_type, one.zone, one.at, one.per_hour) for one in told if one.at <= now]
    with unit_of_work(sessions) as session:
        return report_prices(session, [*points, *listed_points(listed, known, now=now)])


def listed_points(listed: Iterable[tuple[str, Decimal]], known: Iterable[Price], *, now: datetime) -> list[Point]:
    """List prices that are news: the first of a type has held for ever, another one holds from now on."""
    newest = {price.instance_type: price.per_hour for price in known if price.market is CapacityType.ON_DEMAND}
    return [
        Point(CapacityType.ON_DEMAND, name, ANY_ZONE, now if name in newest else ALWAYS, per_hour)
        for name, per_hour in listed
        if newest.get(name) != per_hour
    ]


def observe_interruptions(sessions: Sessions, clock: Clock) -> int:
    """Works out anew how often spot hosts are taken, by type and zone; returns of how many."""
    now = clock.now()
    with unit_of_work(sessions) as session:
        found = _observed(session, now)
        for (instance_type, zone), observed in sorted(found.items()):
            settle_rate(session, instance_type, zone, observed, now=now)
    return len(found)


def _observed(session: Session, now: datetime) -> dict[tuple[str, str], Observed]:
    since = now - WINDOW
    struck: dict[tuple[str, str], list[tuple[datetime, float]]] = defaultdict(list)
    for notice in spot.interruptions(session, since=since):
        weight = 1.0 if notice.kind is NoticeKind.INTERRUPTION else REBALANCE_WEIGHT
        struck[notice.instance_type, notice.zone].append((notice.announced_at, weight))
    lives: dict[tuple[str, str], list[tuple[datetime, datetime]]] = defaultdict(list)
    zones = _zones(session)
    taken = spot.reclaimed(session, since=since)
    for node in spot.launched(session, since=since, until=now, cluster_id=None, ids=None):
        if node.capacity_type is CapacityType.SPOT and node.launched_at is not None:
            key = (node.instance_type, node.zone or zones[node.cluster_id])
            lives[key].append((max(node.launched_at, since), node.state_since if node.state is NodeState.GONE else now))
    for node in taken:
        struck[node.instance_type, node.zone or zones[node.cluster_id]].append((node.state_since, 1.0))
    return {key: observe(struck.get(key, ()), lives.get(key, ()), now) for key in {*struck, *lives}}


def _zones(session: Session) -> dict[str, str]:
    clusters: Sequence[Cluster] = session.query(Cluster).all()
    return {cluster.id: cluster.zone for cluster in clusters}
