"""Threads that do what blocks, for a loop that must not. A hop there and back costs half of what the general-purpose pools take for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


@dataclass
class Hands:
    """``most`` threads, started when they are first needed. They end with the process, and hold nothing that would mind."""

    most: int
    name: str
    _jobs: SimpleQueue[_Job] = field(default_factory=SimpleQueue, repr=False)
    _started: int = 0
    _busy: int = 0

    async def do(self, work: Callable[[], Result]) -> Result:
        """What the function returns, or raises. Cancelled meanwhile, it still runs to its end. Call it from one loop only."""
        self._busy += 1
        if self._busy > self._started < self.most:
            self._started += 1
            threading.Thread(target=self._labour, name=f"{self.name}-{self._started}", daemon=True).start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        self._jobs.put((loop, done, work))
        try:
            return await done
        finally:
            self._busy -= 1

    def _labour(self) -> None:
        while True:
            loop, done, work = self._jobs.get()
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  (it belongs to whoever waits, whatever it is)
                _tell(loop, _fail, done, error)
            else:
                _tell(loop, _succeed, done, result)
            del loop, done, work  # or the last answer would live until the next call


def _tell(loop: asyncio.AbstractEventLoop, tell: Callable[[asyncio.Future[Any], Any], None], done: Any, told: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(tell, done, told)


def _succeed(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        # A future does not take a StopIteration, and whoever awaits it would wait for ever.
        done.set_exception(RuntimeError("StopIteration") if isinstance(error, StopIteration) else error)
