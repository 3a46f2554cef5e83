"""In which order a spot group's instance types are asked for. Pure.

First by how often their hosts are taken, in coarse bands; among types of one band by whether spot costs less than the list price at all; and then as the
group prefers them. Types that cost more than the policy allows are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from models.spot.rates import USUAL_PER_HOUR, band


@dataclass(frozen=True)
class Market:
    """What is known of the types now: the lowest spot price of an hour in any zone, the list price, interruptions an hour."""

    spot: Mapping[str, Decimal] = field(default_factory=dict)
    listed: Mapping[str, Decimal] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    highest: Decimal | None = None
    """What an hour may cost."""


@dataclass(frozen=True)
class Order:
    """``types`` are those that may be asked for, the most promising first; all of them, if none may. ``too_dear`` says why not, by type."""

    types: tuple[str, ...]
    too_dear: Mapping[str, str] = field(default_factory=dict)


def order(types: Sequence[str], market: Market) -> Order:
    """``types`` in the group's own order of preference."""
    ordered = sorted(types, key=lambda name: (band(market.rates.get(name, USUAL_PER_HOUR)), _saves_nothing(name, market)))
    too_dear = {name: why for name in types if (why := _excess(name, market)) is not None}
    return Order(tuple(name for name in ordered if name not in too_dear) or tuple(ordered), too_dear)


def _saves_nothing(name: str, market: Market) -> bool:
    spot, listed = market.spot.get(name), market.listed.get(name)
    return spot is not None and listed is not None and spot >= listed


def _excess(name: str, market: Market) -> str | None:
    """A price that is not known forbids nothing."""
    spot = market.spot.get(name)
    if spot is None or market.highest is None or spot <= market.highest:
        return None
    return f"{name} costs {spot} dollars an hour on the spot market; the policy allows {market.highest}."
