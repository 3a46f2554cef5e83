"""The way from the agent to the control plane, which can be cut on purpose: nothing gets through, and what is open closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress


class Network:
    """Cut as long as anybody has it cut. What runs on the node does not use it."""

    def __init__(self) -> None:
        self._cut_by: set[str] = set()
        self._is_cut = asyncio.Event()

    @property
    def is_cut(self) -> bool:
        return bool(self._cut_by)

    def cut(self, by: str) -> None:
        self._cut_by.add(by)
        self._is_cut.set()

    def mend(self, by: str) -> None:
        self._cut_by.discard(by)
        if not self._cut_by:
            self._is_cut.clear()

    async def lines(self, source: AsyncIterator[str]) -> AsyncIterator[str]:
        """The lines of a stream, until it ends or the network is cut."""
        cut = asyncio.ensure_future(self._is_cut.wait())
        try:
            while True:
                line: asyncio.Future[str] = asyncio.ensure_future(anext(source))
                try:
                    await asyncio.wait((line, cut), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not line.done():
                        line.cancel()
                        with suppress(asyncio.CancelledError):
                            await line
                if line.cancelled():
                    return
                try:
                    told = line.result()
                except StopAsyncIteration:
                    return
                yield told
        finally:
            cut.cancel()
