"""How long a step takes here, and from when on its not ending is a hang. Pure: time is an argument, in seconds of a monotonic clock.

Everything that is remembered is of one generation: what made the job slow before a change of membership says nothing of the time after it, and an
activity that a killed process never ended is nobody's.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

_REMEMBERED = 64
_SURE_AFTER = 3
_HIGH = 0.95


@dataclass(frozen=True)
class Patience:
    """``after_s``: never sooner than this. ``factor``: so many times the job's own slow steps (their 95th percentile).

    ``early_factor``: so many times ``after_s`` until three steps of the generation are known (kernels are compiled, data is found), and while a
    save keeps the step from going on.
    """

    after_s: float
    factor: float = 10.0
    early_factor: float = 10.0

    @property
    def early_s(self) -> float:
        return self.after_s * self.early_factor


class Pace:
    """Written by the training thread and read by another: every line changes one thing."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._since: float | None = None
        self._aside: tuple[float, float] | None = None

    def rest(self) -> None:
        """No step is expected: a change of membership, the time before the first step and after the last."""
        self._since = self._aside = None

    def restart(self) -> None:
        """Another generation: nothing of the one before counts."""
        self.rest()
        self._seconds.clear()

    def begin(self, now: float) -> None:
        """Steps are expected from now on, if they were not before."""
        if self._since is None:
            self._since = now

    def committed(self, now: float) -> None:
        if self._since is not None:
            self._seconds.append(now - self._since)
        self._since = now

    def set_aside(self, now: float, limit_s: float | None = None) -> None:
        """Something begins that is not the step's own work and may take ``limit_s``; left out, as long as an early step."""
        self._aside = (now, self._patience.early_s if limit_s is None else limit_s)

    def resume(self, now: float) -> None:
        """It has ended, and its time is not counted."""
        aside, self._aside = self._aside, None
        if aside is not None:
            self.forgive(now - aside[0])

    def forgive(self, seconds: float) -> None:
        """So much of the time since the last progress does not count."""
        if self._since is not None:
            self._since += seconds
        if self._aside is not None:
            self._aside = (self._aside[0] + seconds, self._aside[1])

    @property
    def limit_s(self) -> float:
        """How long may pass without progress."""
        aside = self._aside
        if aside is not None:
            return aside[1]
        known = sorted(self._seconds)
        if self._since is None or len(known) < _SURE_AFTER:
            return self._patience.early_s
        slow = known[math.ceil(_HIGH * len(known)) - 1]
        return max(self._patience.after_s, self._patience.factor * slow)

    def seconds(self, now: float) -> float | None:
        """Since the last progress; None when none is expected."""
        since, aside = self._since, self._aside
        if since is None:
            return None
        return now - (aside[0] if aside is not None else since)


class Ticks:
    """Tells how much of the time between two looks nobody here ran: a process that was stopped, or a machine that was paused or starved."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last: float | None = None

    def lost(self, now: float) -> float:
        last, self._last = self._last, now
        if last is None:
            return 0.0
        late = now - last - self._every_s
        return late if late > self._every_s else 0.0
