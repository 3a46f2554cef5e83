"""Time as an argument."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time. Always aware, always UTC."""

    def now(self) -> datetime: ...


class WallClock:
    """The time of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)
