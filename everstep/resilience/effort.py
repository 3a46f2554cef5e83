"""What this rank's own part of a step takes: the time until its last collective before the vote was begun, without its waits for others.

A collective's waiting belongs to the slowest rank, its beginning to oneself; so ranks can be compared although they all end a step together.
"""

from __future__ import annotations

import threading
import time


class Effort:
    """One per process. Costs a look at the clock for each collective."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._began = self._launched = time.monotonic()
        self._waited = self._waited_before = 0.0

    def begin(self) -> None:
        """A step of the calling thread, which is the one that trains, begins."""
        self._thread = threading.get_ident()
        self._began = self._launched = time.monotonic()
        self._waited = self._waited_before = 0.0

    def launched(self) -> None:
        """A collective was begun, in any thread: whatever it reduces has been computed."""
        self._launched = time.monotonic()
        self._waited_before = self._waited

    def waited(self, seconds: float) -> None:
        """Somebody waited for a collective; only the training thread's waits keep a step from going on."""
        if threading.get_ident() == self._thread:
            self._waited += seconds

    def seconds(self) -> float:
        """Of the step so far."""
        return max(0.0, self._launched - self._began - self._waited_before)


EFFORT = Effort()
"""Torch's default group is one per process, and so is this."""
