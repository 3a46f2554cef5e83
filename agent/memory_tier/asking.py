"""Questions to others that may hang: asked in threads of their own, waited for no longer than one likes, never asked twice at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

Found = TypeVar("Found")
Work = tuple[Future[Any], Callable[[], Any]]


class Asking:
    """Thread-safe. Whoever hangs costs one thread, however often it is asked. The threads keep no process from ending."""

    def __init__(self, most_threads: int = 64) -> None:
        self._most_threads = most_threads
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._threads = 0
        self._is_closed = False

    def is_under_way(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._under_way

    def begin(self, key: Hashable, question: Callable[[], Found]) -> Future[Found]:
        """Asks, or joins who has asked the same and has no answer yet. After ``close`` the answer is a cancelled one."""
        with self._lock:
            known = self._under_way.get(key)
            if known is not None:
                return known
            asked: Future[Found] = Future()
            if self._is_closed:
                return _cancelled(asked)
            self._under_way[key] = asked
            self._work.put((asked, question))
            if self._threads < min(len(self._under_way), self._most_threads):
                self._threads += 1
                threading.Thread(target=self._answer, name="asking", daemon=True).start()
        asked.add_done_callback(lambda _: self._end(key))
        return asked

    def within(self, seconds: float, key: Hashable, question: Callable[[], Found]) -> Found | None:
        """The answer; None when it takes longer. Raises what the question raises."""
        asked = self.begin(key, question)
        wait([asked], timeout=seconds)
        return asked.result() if asked.done() and not asked.cancelled() else None

    def close(self) -> None:
        """Nothing more is asked; who waits for an answer that has not begun is told that there is none."""
        with self._lock:
            self._is_closed = True
            threads = self._threads
        with contextlib.suppress(Empty):
            while (work := self._work.get_nowait()) is not None:
                _cancelled(work[0])
        for _ in range(threads):
            self._work.put(None)

    def _answer(self) -> None:
        while (work := self._work.get()) is not None:
            asked, question = work
            asked.set_running_or_notify_cancel()
            try:
                found = question()
            except BaseException as error:  # noqa: BLE001  (whatever it is, it is the answer)
                asked.set_exception(error)
            else:
                asked.set_result(found)

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._under_way.pop(key, None)


def _cancelled(asked: Future[Found]) -> Future[Found]:
    """Of a question that nobody has begun; who waits for it is woken, which ``cancel`` alone does not do."""
    asked.cancel()
    asked.set_running_or_notify_cancel()
    return asked
