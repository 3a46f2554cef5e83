"""Futures for C++ callers that wait for a collective: the reducer of DDP.

1. A promise is kept in that thread of gloo's in which its collective ends: nobody is woken but whoever waits for it.
2. Gloo can lose a completion; then a thread that looks now and then leaves the promise, as ``GuardedWork`` leaves a wait.
3. Left, it must fail as a C++ error: an exception set from Python would reach the reducer as a value without tensors. ``then`` turns an
   exception of its callback into such an error, hence the detour.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist

from everstep.errors import CollectiveFailed

from .escapes import Departure, Escape, failure
from .unwind import Unwind

_LOOK_S = 0.05


class Promised(Protocol):
    """The collective under way."""

    inner: dist.Work
    escape: Escape

    def end(self) -> None:
        """It has succeeded. Never waits."""


class Promise:
    """One future. Kept once, by whoever comes first."""

    def __init__(self, work: Promised) -> None:
        self._work = work
        self._departure = Departure(work.escape)
        self._done: torch.futures.Future[Any] = torch.futures.Future()
        self._error: BaseException | None = None
        self._keeping = threading.Lock()
        self.is_kept = False
        self.answer = self._done.then(self._value)

    def settle(self, told: torch.futures.Future[Any]) -> None:
        """The collective has ended. In a thread of gloo's, which must not be held up."""
        try:
            told.value()
            self._work.end()
        except RuntimeError as error:
            self._keep(failure(self._work.escape, str(error)))
        else:
            self._keep(None)

    def look(self) -> None:
        """Leaves it, if it is time to."""
        try:
            self._departure.look()
        except (Unwind, CollectiveFailed) as error:
            self._keep(error)

    def _keep(self, error: BaseException | None) -> None:
        with self._keeping:
            if self.is_kept:
                return
            self.is_kept, self._error = True, error
        self._done.set_result(None)

    def _value(self, _: torch.futures.Future[Any]) -> Any:
        if self._error is not None:
            message = f"collective failed: {str(self._error) or type(self._error).__name__}"
            raise CollectiveFailed(message)
        return self._work.inner.get_future().value()


class _Lookout:
    """Looks after the promises of this process, in a thread that the first of them starts."""

    def __init__(self) -> None:
        self._promises: list[Promise] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, promise: Promise) -> None:
        with self._lock:
            self._promises.append(promise)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="everstep-promises", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                self._promises = waiting = [promise for promise in self._promises if not promise.is_kept]
            for promise in list(waiting):
                promise.look()


_lookout = _Lookout()


def promise(work: Promised) -> torch.futures.Future[Any]:
    """A future of what the collective makes."""
    made = Promise(work)
    _lookout.add(made)
    work.inner.get_future().add_done_callback(made.settle)
    return made.answer
