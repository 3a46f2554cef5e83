"""How waits end: alone, and in a generation; and when one that does not end is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from everstep.errors import CollectiveFailed

from .unwind import Unwind

GRACE_S = 0.1
"""So long operations whose sockets were cut have to fail by themselves."""
OPERATION_TIMEOUT = timedelta(minutes=30)


class Escape(Protocol):
    """What a wait asks while it waits."""

    def is_superseded(self) -> bool:
        """A newer generation exists: what is waited for will never come."""

    def cut(self) -> None:
        """Make pending operations fail."""

    def failed(self, message: str) -> None:
        """A collective failed, or was left. Called from whichever thread noticed."""


class Departure:
    """When one wait is left. Asked again and again while it lasts, by one thread."""

    def __init__(self, escape: Escape, limit: timedelta | None = None) -> None:
        self._escape = escape
        self._limit_s = (limit or OPERATION_TIMEOUT).total_seconds()
        self._deadline = time.monotonic() + self._limit_s
        self._leave_at: float | None = None

    def look(self) -> None:
        """Returns while it is worth waiting.

        Raises:
            Unwind: a newer generation exists, and the operation has not even failed.
            CollectiveFailed: it takes longer than it may.
        """
        now = time.monotonic()
        if self._leave_at is None and self._escape.is_superseded():
            self._escape.cut()
            self._leave_at = now + GRACE_S
        if self._leave_at is not None and now > self._leave_at:
            self._escape.failed("left behind, because a newer generation exists")
            raise Unwind
        if now > self._deadline:
            raise failure(self._escape, f"no completion within {self._limit_s:.0f} s")


def failure(escape: Escape, message: str) -> CollectiveFailed:
    """The error of a collective that failed, of which the escape has been told."""
    first_line = message.splitlines()[0] if message else "no message"
    escape.failed(first_line)
    return CollectiveFailed(first_line)


class Alone:
    """The escape of a world of one: there is nobody to wait for."""

    def is_superseded(self) -> bool:
        return False

    def cut(self) -> None:
        """Nobody is connected."""

    def failed(self, message: str) -> None:
        """The caller sees the error itself."""


@dataclass(frozen=True)
class OfGeneration:
    """The escape of one generation, as its membership answers it."""

    is_newer_known: Callable[[], bool]
    cut_sockets: Callable[[], None]
    tell: Callable[[str], None]

    def is_superseded(self) -> bool:
        return self.is_newer_known()

    def cut(self) -> None:
        self.cut_sockets()

    def failed(self, message: str) -> None:
        self.tell(message)
