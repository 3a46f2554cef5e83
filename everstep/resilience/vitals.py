"""What this process says of itself while it lives: how long it has made no progress, whether it waits for others, and where its threads are.

The watcher's thread says it, once a second; a process whose watcher is silent is judged by its agent.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import FrameType
from typing import Any

from everstep.local_protocol import STACKS_SIGNAL, ToAgent

from .effort import EFFORT
from .pace import Lag, Pace, Patience, Ticks
from .place import Place
from .watcher import Watcher

PULSE_S = 1.0
_TOLD_AT = (1.25, 1.5, 2.0)
"""Of the limit: when it is told again that it has passed; from then on whenever the time has doubled."""
_LONGEST_STACK = 12_000


class Vitals:
    """One per process. ``place`` is where it stands, ``waits`` whether a collective has begun and not ended; ``watcher`` tells, if there is one."""

    def __init__(self, place: Place, waits: Callable[[], bool], watcher: Watcher | None = None, *, after_s: float) -> None:
        self.pace = Pace(Patience(after_s))
        self._lag = Lag()
        self._place = place
        self._waits = waits
        self._watcher = watcher
        self._is_under_way = False
        self._trains = threading.get_ident()
        self._ticks = Ticks(PULSE_S)
        self._tells_at_s = 0.0
        self._said_waiting: bool | None = None
        if watcher is not None:
            watcher.pulse = self.pulse

    # ------------------------------------------------------------ the training thread

    def begun(self) -> None:
        """A step begins."""
        self.pace.begin(time.monotonic())
        if not self._is_under_way:
            self._is_under_way = True
            EFFORT.begin()

    def committed(self) -> None:
        """It has ended, and what the script does before the next one belongs to that."""
        self.pace.committed(time.monotonic())
        EFFORT.begin()

    def rest(self) -> None:
        """No steps are expected for now; those that come are of another generation."""
        self.pace.restart()
        self._lag.restart()
        self._is_under_way = False

    def compare(self, own_s: float, all_s: float) -> None:
        """What this rank's own part of a step has taken, and those of all ranks together. Tells, if this one holds the others up, or has caught up."""
        place = self._place
        lagging = self._lag.add(own_s, all_s, place.world_size)
        if lagging is not None and self._watcher is not None:
            self._watcher.tell(ToAgent.STRAGGLER, generation=place.generation, step=place.step, **asdict(lagging))

    # ------------------------------------------------------------ the watcher's thread

    def pulse(self, now: float | None = None) -> dict[str, Any]:
        """For the watcher's thread: what is told to the agent, with a ``stack`` where the limit has passed.

        That is told then, several times before the time has doubled, whenever it doubles, and when a rank that computed begins to wait, or the other
        way round: who is to blame is told by the newest words.
        """
        now = time.monotonic() if now is None else now
        self.pace.forgive(self._ticks.lost(now))
        seconds, limit_s = self.pace.seconds(now), self.pace.limit_s
        told: dict[str, Any] = {
            "generation": self._place.generation,
            "step": self._place.step,
            "seconds": seconds,
            "limit_s": limit_s,
        }
        if seconds is None or seconds <= limit_s:
            self._tells_at_s, self._said_waiting = 0.0, None
            return told
        is_waiting = self._waits()
        if seconds >= self._tells_at_s or is_waiting is not self._said_waiting:
            self._tells_at_s = next((part * limit_s for part in _TOLD_AT if part * limit_s > seconds), seconds * 2)
            self._said_waiting = is_waiting
            told |= {"is_waiting": is_waiting, "stack": stacks(self._trains)}
        return told

    @contextlib.contextmanager
    def aside(self, limit_s: float | None = None) -> Iterator[None]:
        """What is done within is not the step's own work, and may take ``limit_s``."""
        self.pace.set_aside(time.monotonic(), limit_s)
        try:
            yield
        finally:
            self.pace.resume(time.monotonic())


def stacks(first: int) -> str:
    """Where every thread is, the one called ``first`` at the top; the innermost line of each last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {one: frame for one, frame in sys._current_frames().items() if one != threading.get_ident()}  # noqa: SLF001, there is no other way
    order = sorted(frames, key=lambda one: (one != first, names.get(one, "")))
    return "\n".join(_told(names.get(one, str(one)), frames[one], is_first=one == first) for one in order)[:_LONGEST_STACK]


def _told(name: str, frame: FrameType, *, is_first: bool) -> str:
    lines = traceback.format_stack(frame)
    return f"Thread {name}{' (it trains)' if is_first else ''}:\n" + "".join(lines if is_first else lines[-1:])


def answer_to_signals() -> None:
    """Has the interpreter write all stacks to the log when the agent asks for it by a signal: also while Python's lock is never released."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no standard error, or a signal that somebody has already
        if signal.getsignal(STACKS_SIGNAL) is signal.SIG_DFL:
            faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True)
