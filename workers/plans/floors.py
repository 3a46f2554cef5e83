"""What a node's all-reduce must reach, learned from what the others of its group have measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH = 4
"""Fewer results tell nothing of what is usual."""
_RATE = 1 / 3
_TRIP = 5.0
_SHORTEST_MS = 10.0
"""Nobody is failed for less: that is the noise of a machine that does something else besides."""


@dataclass(frozen=True)
class Learned:
    """``mib_per_s`` at least, ``ms`` at most."""

    mib_per_s: float
    ms: float


def learned(rates: Sequence[float], trips: Sequence[float]) -> Learned | None:
    """A third of the median bandwidth, and five times the median latency, of the results (MiB/s, ms); None if there are too few.

    The median, so that neither a single broken node nor a single lucky result moves it.
    """
    if min(len(rates), len(trips)) < ENOUGH:
        return None
    return Learned(statistics.median(rates) * _RATE, max(statistics.median(trips) * _TRIP, _SHORTEST_MS))
