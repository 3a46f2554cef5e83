"""How often spot hosts are taken, by what has been seen of them. Pure.

An exponentially weighted rate: what happened a half-life ago counts half, interruptions and the hours without one alike. A few hours at a usual rate
are counted besides, so that a type which has been tried for minutes is neither praised nor damned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

HALF_LIFE = timedelta(days=3)
WINDOW = HALF_LIFE * 8
"""What is older weighs less than half a per cent."""
USUAL_PER_HOUR = 0.02
_USUAL_HOURS = 10.0
REBALANCE_WEIGHT = 0.25
"""A recommendation to leave is no interruption, but is given to hosts that are taken sooner than others."""
_LOW_PER_HOUR = 0.05
_HIGH_PER_HOUR = 0.5


class Band(IntEnum):
    """Rates are told apart coarsely: an order of types must not turn with every interruption."""

    LOW = 0
    MIDDLE = 1
    HIGH = 2


@dataclass(frozen=True)
class Observed:
    """Weighted interruptions, weighted node-hours, and the rate that follows."""

    interruptions: float
    hours: float

    @property
    def per_hour(self) -> float:
        return (self.interruptions + USUAL_PER_HOUR * _USUAL_HOURS) / (self.hours + _USUAL_HOURS)


def observe(struck: Iterable[tuple[datetime, float]], lives: Iterable[tuple[datetime, datetime]], now: datetime) -> Observed:
    """``struck`` are interruptions with what each counts; ``lives`` the spans in which hosts were there."""
    interruptions = sum(weight * _weight(at, now) for at, weight in struck)
    return Observed(interruptions, sum(_weighted_hours(since, until, now) for since, until in lives))


def band(per_hour: float) -> Band:
    if per_hour < _LOW_PER_HOUR:
        return Band.LOW
    return Band.MIDDLE if per_hour < _HIGH_PER_HOUR else Band.HIGH


def _weight(at: datetime, now: datetime) -> float:
    return math.exp2(-max(timedelta(0), now - at) / HALF_LIFE)


def _weighted_hours(since: datetime, until: datetime, now: datetime) -> float:
    """The integral of the weight over the span."""
    end = min(until, now)
    if end <= since:
        return 0.0
    scale = HALF_LIFE / timedelta(hours=1) / math.log(2)
    return scale * (_weight(end, now) - _weight(since, now))
