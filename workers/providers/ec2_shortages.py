"""What EC2 had none of, of which type, where and in which market; it is not asked for that again for a while, which grows.

In the memory of one process: another one that does not know asks once, and is told. Nothing is decided by it but the order and the pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from workers.providers.base import Market

FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=5)


@dataclass(frozen=True)
class Pool:
    """``place`` is a zone, or a subnet whose zone is not known; None: the whole region."""

    instance_type: str
    place: str | None
    market: Market


@dataclass(frozen=True)
class _Shortage:
    code: str
    since: float
    pause: float


@dataclass
class Shortages:
    """``clock`` counts seconds. A first pause of zero remembers nothing."""

    clock: Callable[[], float]
    first: timedelta = FIRST_PAUSE
    longest: timedelta = LONGEST_PAUSE
    _known: dict[Pool, _Shortage] = field(default_factory=dict)

    def note(self, pool: Pool, code: str) -> None:
        """There was none: the pause is twice the one before, if that one is not long over."""
        now = self.clock()
        known = self._known.get(pool)
        is_recent = known is not None and now <= known.since + known.pause + self.longest.total_seconds()
        pause = known.pause * 2 if known is not None and is_recent else self.first.total_seconds()
        self._known[pool] = _Shortage(code, now, min(pause, self.longest.total_seconds()))

    def clear(self, pool: Pool) -> None:
        """There was one."""
        self._known.pop(pool, None)
        self._known.pop(Pool(pool.instance_type, None, pool.market), None)

    def code(self, pool: Pool) -> str | None:
        """What EC2 said, as long as it is not to be asked again."""
        known = self._known.get(pool)
        if known is None or self.clock() >= known.since + known.pause:
            return None
        return known.code
