"""Where a training process stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .anomaly import Losses


@dataclass
class Place:
    """Where this process stands. ``step`` is the next to be trained, ``consumed`` the samples before it."""

    generation: int = 0
    rank: int = 0
    world_size: int = 1
    step: int = 0
    consumed: int = 0
    holds_state: bool = False
    is_reduced: bool = False
    is_aged: bool = False
    """Others have trained without this process since it came to its state."""
    alone_since: int = 0
    last_loss: float | None = None
    recent: list[dict[str, Any]] = field(default_factory=list)
    """The last steps as told by rank 0; its successor tells them again, because words of a killed process may be lost."""
    position: dict[str, Any] | None = None
    """Where a stream of data stands after ``consumed`` samples; None where their number says everything."""
    losses: Losses = field(default_factory=Losses)
    """What is remembered of losses, where there is a policy for them."""
