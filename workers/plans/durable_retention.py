"""Which durable steps of a namespace the object store need not keep any longer. Pure.

Invariants, whatever the policy says: the newest complete step stays, pinned ones stay, and so does one that is being exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from everstep.tiers import Retention


@dataclass(frozen=True)
class DurableStep:
    """``is_held``: pinned or being exported, so that no policy takes it."""

    step: int
    nbytes: int
    durable_at: datetime
    is_held: bool = False


def verdicts(steps: Sequence[DurableStep], keep: Retention, now: datetime) -> dict[int, str]:
    """The steps that are to go, oldest first, each with its reason.

    A step stays if it is among the ``last`` newest or a multiple of ``every``, unless it is older than ``max_age_s``; then the oldest go until all
    take no more than ``max_bytes``. What must stay counts in both, and is never taken.
    """
    ordered = sorted(steps, key=lambda one: one.step)
    movable = [one for one in ordered[:-1] if not one.is_held]
    going = {one.step: why for one in movable if (why := _by_count(one, ordered, keep) or _by_age(one, keep, now))}
    left = sum(one.nbytes for one in ordered if one.step not in going)
    for one in movable:
        if keep.max_bytes is None or left <= keep.max_bytes:
            break
        if one.step not in going:
            going[one.step] = f"all that is kept would take more than {keep.max_bytes} bytes"
            left -= one.nbytes
    return dict(sorted(going.items()))


def next_by_age(steps: Sequence[DurableStep], keep: Retention, now: datetime) -> timedelta | None:
    """How long it takes until a further step is too old; None if none ever will be."""
    if keep.max_age_s is None:
        return None
    newest = max((one.step for one in steps), default=0)
    ends = [one.durable_at + timedelta(seconds=keep.max_age_s) for one in steps if not one.is_held and one.step != newest]
    return min((end - now for end in ends if end > now), default=None)


def _by_count(one: DurableStep, ordered: Sequence[DurableStep], keep: Retention) -> str | None:
    if keep.last is None and keep.every is None:
        return None
    if keep.last is not None and one.step in {newest.step for newest in ordered[-keep.last :]}:
        return None
    if keep.every is not None and one.step % keep.every == 0:
        return None
    rules = [f"one of the {keep.last} newest"] if keep.last is not None else []
    rules += [f"a multiple of {keep.every}"] if keep.every is not None else []
    return f"it is neither {' nor '.join(rules)}" if len(rules) > 1 else f"it is not {rules[0]}"


def _by_age(one: DurableStep, keep: Retention, now: datetime) -> str | None:
    if keep.max_age_s is None or now - one.durable_at <= timedelta(seconds=keep.max_age_s):
        return None
    return f"it is older than {timedelta(seconds=keep.max_age_s)}"
