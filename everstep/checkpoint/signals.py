"""SIGTERM in a training process: the step is saved durably before the process ends, if that can be done in time.

A process that is in no step (a spare, a rehearsal, a change of membership) has nothing of its own to save, and ends at once, as without us.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class Leaving:
    """``is_asked`` from the signal on. Whoever trains looks at it once a step, saves, and calls ``leave``.

    After ``grace_s`` the process is ended by SIGKILL, whatever it is doing: as whoever sent the signal will do.
    """

    def __init__(self, grace_s: float, is_in_step: Callable[[], bool]) -> None:
        self.grace_s = grace_s
        self.is_asked = False
        self._is_in_step = is_in_step
        self._deadline: threading.Timer | None = None

    def install(self) -> bool:
        """In the main thread alone, and only where the program has not said itself what SIGTERM is to do. Says whether it has."""
        if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, self._hear)
        return True

    def leave(self) -> None:
        """Ends the process, as the signal would have. Returns only if it was not asked for."""
        if self.is_asked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        is_first, self.is_asked = not self.is_asked, True
        if not self._is_in_step():
            self.leave()
        elif is_first:
            self._deadline = threading.Timer(self.grace_s, os.kill, (os.getpid(), signal.SIGKILL))
            self._deadline.daemon = True
            self._deadline.start()
