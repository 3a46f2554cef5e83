"""Waiting between tries, so that a thousand agents do not fall upon a control plane that has just come back."""

from __future__ import annotations

import asyncio
import random

FIRST_S = 0.1
LONGEST_S = 3.0


class Pauses:
    """Grows with each try in vain, jittered; a success of anybody on this node ends the waiting of all."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._heard = asyncio.Event()

    def jitter(self, seconds: float) -> float:
        return seconds * self._rng.uniform(0.9, 1.1)

    async def after(self, tries: int) -> None:
        """Waits after this many tries in vain, from 1."""
        longest = min(LONGEST_S, FIRST_S * 2 ** min(tries - 1, 10))
        self._heard.clear()
        try:
            async with asyncio.timeout(self._rng.uniform(longest / 2, longest)):
                await self._heard.wait()
        except TimeoutError:
            return

    def heard(self) -> None:
        """The control plane has answered."""
        self._heard.set()
