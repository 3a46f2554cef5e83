"""How waits end: alone, and in a generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
