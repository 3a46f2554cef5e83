"""What hosts cost: their life spans times the prices in force. Pure, and exact: sums are of fractions, rounded by nobody but who shows them.

A second is counted once, and splitting a span anywhere changes no sum. Seconds for which a price is missing are told apart, never taken for free.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from itertools import pairwise

from models.node.states import CapacityType

Dollars = Fraction
_NONE = Fraction(0)
_HOUR = timedelta(hours=1) // timedelta(microseconds=1)
ANY_ZONE = ""


@dataclass(frozen=True)
class Point:
    """From ``at`` on an hour costs this, until the next point of the same market, type and zone."""

    market: CapacityType
    instance_type: str
    zone: str
    at: datetime
    per_hour: Decimal


@dataclass(frozen=True)
class Life:
    """A host from its launch until it was gone, or until now."""

    node: str
    instance_type: str
    zone: str
    market: CapacityType
    since: datetime
    until: datetime


@dataclass(frozen=True)
class Use:
    """A job had processes on the node."""

    node: str
    job: str
    since: datetime
    until: datetime


@dataclass(frozen=True)
class Bill:
    """Node-seconds and what they cost, by market.

    ``listed`` is the list price of the spot seconds, and ``saved`` what they would have cost more at it. What is ``unpriced`` is in no sum of dollars;
    spot seconds that are ``unlisted`` have a price and no list price to hold it against, so they are not in ``listed`` and ``saved``.
    """

    spot_us: Fraction = _NONE
    on_demand_us: Fraction = _NONE
    unpriced_us: Fraction = _NONE
    unlisted_us: Fraction = _NONE
    spot: Dollars = _NONE
    on_demand: Dollars = _NONE
    listed: Dollars = _NONE
    saved: Dollars = _NONE

    def __add__(self, other: Bill) -> Bill:
        return Bill(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def part(self, share: Fraction) -> Bill:
        return Bill(*(getattr(self, one.name) * share for one in fields(self)))


@dataclass(frozen=True)
class _Line:
    """The prices of one market, type and zone."""

    times: Sequence[datetime]
    prices: Sequence[Decimal]

    def at(self, moment: datetime) -> Decimal | None:
        place = bisect_right(self.times, moment)
        return self.prices[place - 1] if place else None

    def changes(self, life: Life) -> Sequence[datetime]:
        """When the price changes within the host's life."""
        return self.times[bisect_right(self.times, life.since) : bisect_left(self.times, life.until)]


_NOTHING = _Line((), ())


@dataclass(frozen=True)
class Prices:
    """Every price that was ever in force. A zone without a series of its own has the one of all zones."""

    lines: Mapping[tuple[CapacityType, str, str], _Line] = field(default_factory=dict)

    @classmethod
    def of(cls, points: Iterable[Point]) -> Prices:
        found: dict[tuple[CapacityType, str, str], dict[datetime, Decimal]] = defaultdict(dict)
        for point in points:
            found[point.market, point.instance_type, point.zone].setdefault(point.at, point.per_hour)
        return cls({key: _Line(sorted(series), [series[at] for at in sorted(series)]) for key, series in found.items()})

    def line(self, market: CapacityType, instance_type: str, zone: str) -> _Line:
        own = self.lines.get((market, instance_type, zone))
        return own or self.lines.get((market, instance_type, ANY_ZONE), _NOTHING)


def bill(life: Life, prices: Prices) -> Bill:
    """What one host cost from its ``since`` to its ``until``."""
    total = Bill()
    spot = prices.line(CapacityType.SPOT, life.instance_type, life.zone)
    listed = prices.line(CapacityType.ON_DEMAND, life.instance_type, life.zone)
    for since, until in _pieces(life, (*spot.changes(life), *listed.changes(life))):
        total += _priced(life.market, (until - since) // timedelta(microseconds=1), spot.at(since), listed.at(since))
    return total


def shares(life: Life, uses: Iterable[Use], prices: Prices) -> dict[str | None, Bill]:
    """The host's bill by job; jobs that had it at the same moment share that moment evenly. None: nobody had it."""
    mine = [use for use in uses if use.node == life.node and use.since < life.until and use.until > life.since]
    edges = [edge for use in mine for edge in (use.since, use.until)]
    totals: dict[str | None, Bill] = defaultdict(Bill)
    for since, until in _pieces(life, edges):
        part = bill(Life(life.node, life.instance_type, life.zone, life.market, since, until), prices)
        holders: set[str | None] = {use.job for use in mine if use.since <= since and use.until >= until}
        for holder in holders or {None}:
            totals[holder] += part.part(Fraction(1, max(1, len(holders))))
    return dict(totals)


def shown(dollars: Dollars, places: int = 6) -> Decimal:
    """Rounded once, to so many places, half to even."""
    scaled = Decimal(round(dollars * 10**places))
    return scaled.scaleb(-places).quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_EVEN)


def _priced(market: CapacityType, microseconds: int, spot: Decimal | None, listed: Decimal | None) -> Bill:
    """Of a piece within which no price changes."""
    length = Fraction(microseconds)
    if market is CapacityType.ON_DEMAND:
        if listed is None:
            return Bill(on_demand_us=length, unpriced_us=length)
        return Bill(on_demand_us=length, on_demand=Dollars(listed) * length / _HOUR)
    if spot is None:
        return Bill(spot_us=length, unpriced_us=length)
    paid = Dollars(spot) * length / _HOUR
    if listed is None:
        return Bill(spot_us=length, unlisted_us=length, spot=paid)
    full = Dollars(listed) * length / _HOUR
    return Bill(spot_us=length, spot=paid, listed=full, saved=full - paid)


def _pieces(life: Life, edges: Iterable[datetime]) -> Iterator[tuple[datetime, datetime]]:
    if life.until <= life.since:
        return
    inner = {edge for edge in edges if life.since < edge < life.until}
    times = sorted({life.since, life.until} | inner)
    yield from pairwise(times)
