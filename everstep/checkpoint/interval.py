"""How often to save, from what saving has been measured to cost and how often faults come. Pure.

Young's first-order optimum (J. W. Young, 1974; Daly, 2006, equation 20): with a cost ``C`` of a save and a mean time ``M`` between faults,
the time between saves that loses least is ``sqrt(2 C M)``. Saves that overlap with training cost less than a stall and more than nothing:
``HIDDEN_COST`` of the time that they take counts as well, or the optimum would be to save at every step as soon as the stall is hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HIDDEN_COST = 0.02
"""The share of a save's background work (copying, hashing, replicating, draining) that training pays for with memory and network bandwidth."""
ASSUMED_MTBF_S = 4 * 3600.0
"""Between faults of a job, where nothing has been observed: pessimistic for a node, usual for a hundred."""
TOTAL_LOSS_RATIO = 10.0
"""Faults that take every copy in memory at once are rarer than faults, by this much: what the durable interval guards against. An assumption."""
LONGEST_S = 1800.0
LONGEST_DURABLE_S = 3600.0
BREATHING = 2.0
"""A save is begun no sooner than this many times the last one's duration after it: saves never queue."""
HYSTERESIS = 0.25
"""An interval in force is changed only for one that is this much longer or shorter."""


@dataclass(frozen=True)
class Costs:
    """What has been measured, in seconds: of the newest save, and of a step. ``mtbf_s`` is None when nobody has observed it."""

    step_s: float
    stall_s: float
    save_s: float
    drain_s: float = 0.0
    mtbf_s: float | None = None


@dataclass(frozen=True)
class Interval:
    """In steps; ``why`` says what it follows from."""

    steps: int
    why: str


def memory_interval(seen: Costs) -> Interval:
    """How often to save to memory."""
    return _interval("memory", seen, _cost(seen), _mtbf(seen), BREATHING * seen.save_s, LONGEST_S)


def durable_interval(seen: Costs) -> Interval:
    """How often to save to the object store: bounded by what draining takes, and by the longest that a durable step may be old."""
    cost = _cost(seen) + HIDDEN_COST * seen.drain_s
    return _interval("durable", seen, cost, _mtbf(seen) * TOTAL_LOSS_RATIO, BREATHING * seen.drain_s, LONGEST_DURABLE_S)


def steadied(in_force: Interval | None, found: Interval) -> Interval:
    """The interval that is in force after ``found``: the one before, unless the new one is far enough from it."""
    if in_force is not None and abs(found.steps - in_force.steps) <= HYSTERESIS * in_force.steps:
        return in_force
    return found


def _cost(seen: Costs) -> float:
    return seen.stall_s + HIDDEN_COST * seen.save_s


def _mtbf(seen: Costs) -> float:
    return ASSUMED_MTBF_S if seen.mtbf_s is None else seen.mtbf_s


def _interval(tier: str, seen: Costs, cost_s: float, mtbf_s: float, shortest_s: float, longest_s: float) -> Interval:
    best_s = math.sqrt(2 * cost_s * mtbf_s)
    bounded_s = min(max(best_s, shortest_s), max(longest_s, shortest_s))
    steps = max(1, round(bounded_s / seen.step_s)) if seen.step_s > 0 else 1
    told = "assumed" if seen.mtbf_s is None else "observed"
    bound = "" if bounded_s == best_s else f", bounded to {bounded_s:.3g} s"
    why = (
        f"{tier}: every {steps} steps: a save costs {cost_s:.3g} s (stall {seen.stall_s:.3g} s), a fault comes every {mtbf_s:.4g} s ({told}), "
        f"so sqrt(2·C·M) = {best_s:.3g} s{bound}; a step takes {seen.step_s:.3g} s"
    )
    return Interval(steps, why)
