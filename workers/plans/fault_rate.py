"""How often a job has to expect a fault, from what has been observed on its cluster. Pure.

What the automatic checkpoint interval needs is the mean time between faults of a job of this size; it is told to the nodes with their plans.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

WINDOW = timedelta(days=3)
"""So far back faults are counted: a repaired switch is forgotten after that, and a new one is not averaged away by a good year."""
_PRIOR_NODE_HOURS = 24.0
"""What is believed before anything was seen weighs as much as so many hours of one node."""
_PRIOR_FAULTS_PER_NODE_HOUR = 1 / 6_300
"""419 unexpected interruptions of 2,048 hosts in 54 days: the training of Llama 3 405B (arXiv:2407.21783, §3.3.4)."""
_SHORTEST = timedelta(minutes=1)
_LONGEST = timedelta(days=30)
_NEWS = 0.2
"""An estimate that differs by less is the same: a plan that changes a little all the time would be told to every node all the time."""


@dataclass(frozen=True)
class Observed:
    """Of one cluster, within the window: changes of membership that a fault caused, and hours of nodes that served."""

    faults: int
    node_hours: float


@dataclass(frozen=True)
class Estimate:
    mtbf: timedelta
    why: str


def estimate(seen: Observed, nodes: int) -> Estimate:
    """The mean time between faults of a job on so many nodes.

    The posterior mean of a Poisson rate under a gamma prior: few observations move it little, many make the prior irrelevant.
    """
    rate = (seen.faults + _PRIOR_FAULTS_PER_NODE_HOUR * _PRIOR_NODE_HOURS) / (seen.node_hours + _PRIOR_NODE_HOURS)
    hours = 1 / (rate * max(1, nodes))
    found = min(_LONGEST, max(_SHORTEST, timedelta(hours=min(hours, _LONGEST / timedelta(hours=1)))))
    why = (
        f"{seen.faults} faults in {seen.node_hours:.1f} node-hours of the last {WINDOW.days} days, "
        f"and the prior of {_PRIOR_FAULTS_PER_NODE_HOUR:.2g} a node-hour weighing {_PRIOR_NODE_HOURS:g} node-hours: one fault in "
        f"{found.total_seconds():.0f} s for a job of {nodes} nodes"
    )
    return Estimate(found, why)


def is_news(told_s: float | None, found: Estimate) -> bool:
    """Whether an estimate differs from what was told last by enough to be told."""
    if told_s is None:
        return True
    return abs(found.mtbf.total_seconds() - told_s) > _NEWS * told_s


def faults_among(memberships: list[tuple[str, ...]], chosen: Collection[int] = ()) -> int:
    """How many of a job's memberships, in order, came of a fault: those that have lost a member of the one before.

    The first is none, neither is one that was only published once more, nor one whose place is among the ``chosen``: nobody had to go there.
    """
    lossy = [place for place, (before, after) in enumerate(pairwise(memberships), start=1) if not set(before) <= set(after)]
    return sum(place not in chosen for place in lossy)
