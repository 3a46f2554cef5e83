"""Checkpoints that are whole and yet of no use: training that goes on from one turns NaN soon after, each time. Pure.

Their digests are right, so no copy of them is better than another: after two failures of the same kind the step is passed over, for an
older one. After ``MOST`` failures in all the job stops, and says what was tried; restarting 44 times is no remedy (NVIDIA/Megatron-LM#5281).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

SOON = 10
"""Steps after a load within which a loss that is not a number is laid to what was loaded."""
IDENTICAL = 2
MOST = 5


@dataclass(frozen=True, order=True)
class Failure:
    """Training went on from ``step`` of ``save``, found in ``source``, and at ``failed_at`` the loss was no number.

    ``generation`` is the one in which it went on, so that what several ranks tell is one failure.
    """

    step: int
    save: str
    source: str
    failed_at: int
    generation: int


def is_poisoned(failures: Iterable[Failure], step: int, save: str) -> bool:
    """Whether this save has failed often enough in the same way to be passed over."""
    ways = Counter((one.step, one.save, one.failed_at) for one in failures)
    return any(count >= IDENTICAL and way[:2] == (step, save) for way, count in ways.items())


def diagnosis(failures: Iterable[Failure]) -> str | None:
    """Words when it is time to stop, None when another try is worth it."""
    told = sorted(set(failures), key=lambda one: one.generation)
    if len(told) < MOST:
        return None
    tried = ", ".join(f"step {one.step} from {one.source}: NaN at step {one.failed_at}" for one in told)
    where = {one.failed_at for one in told}
    if len(where) == 1 and len({one.step for one in told}) > 1:
        verdict = (
            f"The loss turns NaN at step {where.pop()} whichever step it goes on from: look at the samples and the learning rate of that step,"
            " not at the checkpoints."
        )
    else:
        verdict = (
            "These checkpoints are whole, but training that goes on from them fails: go on from an older pinned or exported step, "
            "or look for what wrote NaN into the state before it was saved."
        )
    return f"Training has failed {len(told)} times soon after a load ({tried}). {verdict}"
