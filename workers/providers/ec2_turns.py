"""Which client token a claim is launched with."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass
class Turns:
    """The first, or another one once a token has been used, for sure, by a launch that came to nothing. Safe for several threads."""

    _turns: dict[str, int] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, claim: str) -> int:
        with self._lock:
            return self._turns.get(claim, 0)

    def puzzle(self, claim: str, now: float, settles_within: timedelta) -> None:
        """The token is used, and no instance is listed. If that stays so for as long as listings may be late, there is none."""
        with self._lock:
            if now - self._since.setdefault(claim, now) > settles_within.total_seconds():
                self._turns[claim] = self._turns.get(claim, 0) + 1
                del self._since[claim]

    def settle(self, claim: str) -> None:
        with self._lock:
            self._turns.pop(claim, None)
            self._since.pop(claim, None)
