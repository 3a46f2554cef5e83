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


@dataclass(frozen=True)
class Lagging:
    """In most of the last ``steps`` steps this rank needed far more time for its own part than the others: seconds, on average.

    ``has_caught_up``: it did so once, and does not any more.
    """

    own_s: float
    others_s: float
    steps: int
    has_caught_up: bool = False


class Lag:
    """Whether this rank persistently holds the others up: in four of five of the last 32 steps by half as much again, and by 5 ms.

    It has caught up when it does so in fewer than two of five: one that is about as slow as the limit is not told at every step.
    """

    _STEPS = 32
    _SHARE = 0.8
    _CAUGHT_UP = 0.4
    _FACTOR = 1.5
    _LEAST_S = 0.005

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=self._STEPS)
        self._is_told = False

    def restart(self) -> None:
        """Another generation: the others may be others."""
        self._steps.clear()
        self._is_told = False

    def add(self, own_s: float, total_s: float, ranks: int) -> Lagging | None:
        """A step in which this rank needed ``own_s`` and all together ``total_s``. Says once that it lags, and once that it has caught up."""
        if ranks <= 1:
            return None
        self._steps.append((own_s, (total_s - own_s) / (ranks - 1)))
        if len(self._steps) < self._STEPS:
            return None
        slow = sum(own > self._FACTOR * others and own - others > self._LEAST_S for own, others in self._steps)
        was_told, self._is_told = self._is_told, slow >= (self._CAUGHT_UP if self._is_told else self._SHARE) * self._STEPS
        if was_told is self._is_told:
            return None
        own_mean, others_mean = (sum(column) / self._STEPS for column in zip(*self._steps, strict=True))
        return Lagging(own_mean, others_mean, self._STEPS, has_caught_up=was_told)
