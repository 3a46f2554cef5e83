"""Questions to others that may hang: asked in threads of their own, waited for no longer than one likes, never asked twice at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Found = TypeVar("Found")


class Asking:
    """Thread-safe. Whoever hangs costs one thread, however often it is asked."""

    def __init__(self, threads: int = 64) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="asking")
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[Any]] = {}

    def is_under_way(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._under_way

    def begin(self, key: Hashable, question: Callable[[], Found]) -> Future[Found]:
        """Asks, or joins who has asked the same and has no answer yet. After ``close`` the answer is a cancelled one."""
        with self._lock:
            known = self._under_way.get(key)
            if known is not None:
                return known
            try:
                asked = self._pool.submit(question)
            except RuntimeError:  # closed
                asked = Future()
                asked.cancel()
                return asked
            self._under_way[key] = asked
        asked.add_done_callback(lambda _: self._end(key))
        return asked

    def within(self, seconds: float, key: Hashable, question: Callable[[], Found]) -> Found | None:
        """The answer; None when it takes longer. Raises what the question raises."""
        asked = self.begin(key, question)
        wait([asked], timeout=seconds)
        return asked.result() if asked.done() and not asked.cancelled() else None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._under_way.pop(key, None)
