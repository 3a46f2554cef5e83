"""A thread for calls that may never come back: a driver that hangs must not take the agent with it, nor keep it from ending."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


class Hand:
    """Does one thing after the other, in the order asked for. It does not outlive the process."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_begun = False

    def do(self, call: Callable[[], Result]) -> asyncio.Future[Result]:
        """What comes of it, or what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def work() -> None:
            try:
                settle = functools.partial(future.set_result, call())
            except Exception as error:  # noqa: BLE001  (whoever waits gets it)
                settle = functools.partial(future.set_exception, error)
            _tell(loop, future, settle)

        self._work.put(work)
        if not self._is_begun:
            self._is_begun = True
            self._thread.start()
        return future

    def let_go(self) -> None:
        """It ends after what it is doing, if that ever ends."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Result], settle: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(lambda: None if future.done() else settle())
