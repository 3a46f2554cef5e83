"""How many spares a job is to have that leaves it to us: as many as seldom leave a fault without one. Pure.

Faults come as they like (Poisson), and each takes a spare away for as long as its replacement takes. Then the number of spares that are
away at a fault is Poisson, too, with the mean of the faults in that time; whatever the distribution of that time (M/G/infinity).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

BARE = 0.01
"""So often a fault may find no spare ready: one in a hundred."""
USUAL = timedelta(minutes=5)
"""A replacement takes so long as long as none was seen."""
LEAST, MOST = 1, 16
"""A job that asks for spares has one. More than the most would be a sign of a cluster that wants repair, not spares."""


@dataclass(frozen=True)
class Sizing:
    """``bare`` is the chance of a fault to find no spare ready."""

    spares: int
    bare: float
    why: str


def replacement(took: Sequence[timedelta]) -> timedelta:
    """What a replacement takes: the median of what was seen."""
    return timedelta(seconds=median(one.total_seconds() for one in took)) if took else USUAL


def size(mtbf: timedelta, takes: timedelta, nodes: int, had: int = 0) -> Sizing:
    """The least number of spares with which a fault finds none ready in at most ``BARE`` of all cases; never more than the job has nodes.

    Args:
        mtbf: between the faults of the whole job.
        nodes: of the job, spares not counted.
        takes: from a fault until the spare that it took is made up for.
        had: so many the job has. It gets fewer only where half of ``BARE`` is kept to: an estimate at the edge would change them all the time.
    """
    away = takes / mtbf
    most = max(LEAST, min(MOST, nodes))
    enough = [next((number for number in range(LEAST, most) if all_away(number, away) <= part * BARE), most) for part in (1.0, 0.5)]
    spares = had if enough[0] <= had <= enough[1] else enough[had > enough[1]]
    bare = all_away(spares, away)
    why = (
        f"{spares} {'spare' if spares == 1 else 'spares'}: one fault in {mtbf.total_seconds():.0f} s is to be expected, and its "
        f"replacement takes {takes.total_seconds():.0f} s; so {_percent(bare)} of the faults find no spare ready, "
        f"where {_percent(BARE)} are thought little enough"
    )
    return Sizing(spares, bare, why if bare <= BARE else f"{why}, but a job of {nodes} nodes gets no more than {most}")


def all_away(spares: int, mean: float) -> float:
    """The chance that at least so many are away, of a Poisson number with that mean."""
    fewer = sum(math.exp(number * math.log(mean) - mean - math.lgamma(number + 1)) for number in range(spares)) if mean else 1.0
    return min(1.0, max(0.0, 1.0 - fewer))


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %"
