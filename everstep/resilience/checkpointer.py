"""Settings of checkpoints. The tiers that will use them do not exist yet: today nothing is written, recovery is from peers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Checkpointer:
    """``every`` and ``durable_every`` are steps; None leaves the interval to the planner.

    In this version the object only carries its settings. A job all of whose processes die at once has lost its state, and says so.
    """

    every: int | None = None
    durable_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "durable_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                message = f"{name} is {value}, but an interval is at least one step"
                raise ValueError(message)
