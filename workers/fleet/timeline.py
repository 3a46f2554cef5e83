"""What will happen in a fleet, and when: a heap of moments in the scenario's own time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Happening = Callable[[], None]


class Timeline:
    """``read`` gives the scenario's seconds that have passed; ``began_at`` is when they began, in Unix seconds, ``speed`` how many pass in a real one."""

    def __init__(self, read: Callable[[], float], *, began_at: float, speed: float = 1.0) -> None:
        self._read = read
        self._began_at = began_at
        self.speed = speed
        self._heap: list[tuple[float, int, Happening]] = []
        self._numbers = itertools.count()
        self.hurried: Callable[[], None] = lambda: None
        """Called when something is to happen sooner than anything else that was known."""

    @property
    def now(self) -> float:
        return self._read()

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def after(self, seconds: float, happening: Happening) -> None:
        self.at(self.now + seconds, happening)

    def at(self, moment: float, happening: Happening) -> None:
        """A happening checks for itself whether it still applies: nothing is ever taken back."""
        entry = (moment, next(self._numbers), happening)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self.hurried()

    def advance(self) -> int:
        """Lets everything happen whose time has come, in order; returns how much that was."""
        done = 0
        while self._heap and self._heap[0][0] <= self.now:
            happening = heapq.heappop(self._heap)[2]
            happening()
            done += 1
        return done

    def real(self, seconds: float) -> float:
        """How many real seconds pass in so many of the scenario's."""
        return seconds / self.speed

    def unix(self, moment: float | None = None) -> float:
        """A moment of the scenario, now unless told otherwise, in Unix seconds."""
        return self._began_at + self.real(self.now if moment is None else moment)
