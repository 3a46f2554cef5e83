"""Waiting for something to become so, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Whoever changes something that others may wait for rings it."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    async def until(self, claim: Callable[[], bool]) -> None:
        while not claim():
            await self._rung.wait()
