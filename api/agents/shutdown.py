"""Hears that the process is to end before its server waits for open answers: directive streams never end by themselves."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(shut_down: Callable[[], None]) -> Iterator[None]:
    """Calls ``shut_down`` in the loop's next turn when a signal asks the process to end, and lets the server's own handler go on.

    Outside the main thread, where Python takes no handlers, nothing is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def heard(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(shut_down)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    ours = {number for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
