"""Losses that are no number, or far above those before them: what is seen, and what is done. Pure.

All ranks see the same mean loss and remember the same losses before it, so each decides alone and all decide alike. What must be remembered travels with
the state, to whoever takes a rank over, and in checkpoints.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, get_args

Reaction = Literal["stop", "rollback", "skip"]
_REACTIONS = get_args(Reaction)
_NORMAL = 1.4826
"""The standard deviation of a normal distribution, in units of its median absolute deviation."""
_LEAST_SPREAD = 1e-3
"""Of the median: losses that hardly differ would make every loss a spike."""
_FEWEST = 16


@dataclass(frozen=True)
class LossPolicy:
    """What to do about the loss of a step, as it is told to ``run.update(step, loss=loss)``.

    ``stop`` ends the job with words. ``skip`` does not apply the step: its samples count as consumed, and neither optimizer nor scheduler move.
    ``rollback`` goes on from the newest checkpoint that is at least ``rollback_steps`` older, and passes over the step when it comes again.

    Args:
        nan: for a loss that is NaN or infinite.
        spike: for a loss above the median of the last ``window`` by ``factor`` standard deviations, which are taken from the median absolute deviation.
            None: spikes are nobody's concern. The first 16 losses are never spikes.
        window: how many losses are remembered.
        factor: how many standard deviations.
        rollback_steps: how much older the checkpoint has to be.
        limit: so many reactions within ``window`` steps; one more stops the job.

    Raises:
        ValueError: a value is not one of those that are possible.
    """

    nan: Reaction = "stop"
    spike: Reaction | None = None
    window: int = 64
    factor: float = 8.0
    rollback_steps: int = 10
    limit: int = 3

    def __post_init__(self) -> None:
        if self.nan not in _REACTIONS or (self.spike is not None and self.spike not in _REACTIONS):
            message = (
                f"LossPolicy: nan={self.nan!r}, spike={self.spike!r}: each is one of {', '.join(_REACTIONS)}, and spike may be None"
            )
            raise ValueError(message)
        if self.window < _FEWEST or not self.factor > 0 or self.rollback_steps < 0 or self.limit < 0:
            message = (
                f"LossPolicy: window={self.window} is at least {_FEWEST}, factor={self.factor} above 0, rollback_steps={self.rollback_steps} and "
                f"limit={self.limit} at least 0"
            )
            raise ValueError(message)

    @property
    def goes_back(self) -> bool:
        """Whether it needs checkpoints."""
        return "rollback" in (self.nan, self.spike)


class What(StrEnum):
    NAN = "not a number"
    SPIKE = "spike"


@dataclass(frozen=True)
class Verdict:
    """``words`` say what was seen and what is done about ``loss``."""

    loss: float
    what: What
    action: Reaction
    words: str


@dataclass
class Losses:
    """What is remembered of losses. ``reactions`` are the steps at which something was done, ``passed_over`` those that are not to be trained.

    ``not_after`` is the newest step whose checkpoint may be gone on from, while a way back is looked for.
    """

    recent: list[float] = field(default_factory=list)
    reactions: list[int] = field(default_factory=list)
    passed_over: list[int] = field(default_factory=list)
    not_after: int | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "recent": [*self.recent],
            "reactions": [*self.reactions],
            "passed_over": [*self.passed_over],
            "not_after": self.not_after,
        }

    def decided(self) -> dict[str, Any]:
        """Without the losses themselves: what others have to know who hold none of the state."""
        return {**self.to_wire(), "recent": []}

    @classmethod
    def from_wire(cls, told: dict[str, Any] | None) -> Self:
        """Of None, what a checkpoint without any says: nothing."""
        return cls(**told) if told else cls()

    def accept(self, loss: float | None, window: int) -> None:
        """A step was applied."""
        if loss is not None:
            self.recent = [*self.recent[1 - window :], loss] if window > 1 else [loss]

    def react(self, step: int) -> None:
        self.reactions = sorted({*self.reactions, step})

    def go_back(self, step: int, rollback_steps: int) -> None:
        """The step is passed over when it comes again, and checkpoints that are too new are not gone on from."""
        self.react(step)
        self.passed_over = sorted({*self.passed_over, step})
        self.not_after = max(0, step - rollback_steps)

    def went_back(self, loaded: Losses) -> None:
        """The state is that of a checkpoint now, and so are the losses before it; what has been done since is not forgotten."""
        self.recent = [*loaded.recent]
        self.learn([loaded])
        self.not_after = None

    def learn(self, others: Iterable[Losses]) -> None:
        """What other ranks know: who has come late takes part in what all decided before."""
        for other in others:
            self.reactions = sorted({*self.reactions, *other.reactions})
            self.passed_over = sorted({*self.passed_over, *other.passed_over})
            limits = [one for one in (self.not_after, other.not_after) if one is not None]
            self.not_after = min(limits, default=None)


def judge(policy: LossPolicy, known: Losses, step: int, loss: float | None) -> Verdict | None:
    """What is to be done about the loss of a step; None: nothing."""
    if loss is None:
        return None
    if not math.isfinite(loss):
        return _limited(policy, known, step, loss, What.NAN, policy.nan, f"the loss of step {step} is {loss}")
    if policy.spike is None or len(known.recent) < _FEWEST:
        return None
    median = statistics.median(known.recent)
    spread = _NORMAL * statistics.median(abs(one - median) for one in known.recent)
    spread = max(spread, _LEAST_SPREAD * abs(median))
    if spread <= 0.0 or loss <= median + policy.factor * spread:
        return None
    seen = f"the loss of step {step} is {loss:.6g}, {(loss - median) / spread:.1f} standard deviations above the median {median:.6g} of the last {len(known.recent)}"
    return _limited(policy, known, step, loss, What.SPIKE, policy.spike, seen)


def _limited(policy: LossPolicy, known: Losses, step: int, loss: float, what: What, action: Reaction, seen: str) -> Verdict:
    lately = [one for one in known.reactions if one > step - policy.window and one != step]
    if action != "stop" and len(lately) >= policy.limit:
        steps = ", ".join(str(one) for one in lately)
        return Verdict(
            loss, what, "stop", f"{seen}; after steps {steps} this is once too often (limit={policy.limit}): training stops"
        )
    done = {
        "stop": "training stops",
        "skip": "the step is not applied, and its samples are passed over",
        "rollback": f"training goes back to a checkpoint of step {max(0, step - policy.rollback_steps)} or before, and passes the step over",
    }
    return Verdict(loss, what, action, f"{seen}: {done[action]}")
