"""Hashes what is held again and again: first, at once, what has been adopted; then everything, slowly, because memory forgets bits."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from agent.memory_tier.store import Store

log = logging.getLogger(__name__)

SHARE = 0.03
"""Of one core, at most, while a round is under way."""


class Scrub:
    """A thread of its own. ``scrubbed_bytes`` and ``progress`` (of the present round, 0 to 1) are for the metrics."""

    def __init__(self, store: Store, *, every_s: float) -> None:
        self.scrubbed_bytes = 0
        self.progress = 0.0
        self._store = store
        self._every_s = every_s
        self._stopped = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)
        self._worked_from = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait_settled(self, seconds: float) -> bool:
        """Until everything that was adopted has been hashed: only then is what this node does not tell of not here."""
        return self._settled.wait(seconds)

    def _run(self) -> None:
        try:
            with contextlib.suppress(InterruptedError):
                while (waiting := self._store.unverified()) and not self._stopped.is_set():
                    self._store.verify(waiting[0], between=self._count)
        except OSError:
            log.exception("what was adopted cannot be looked through; it is when it is asked for")
        self._settled.set()
        while not self._stopped.wait(self._every_s):
            try:
                self._round()
            except OSError:
                log.exception("the shards cannot be looked through, trying again in %.0f s", self._every_s)

    def _round(self) -> None:
        present = sorted(self._store.seals(), key=lambda seal: -seal.written_at)
        for number, seal in enumerate(present):
            self.progress = number / len(present)
            self._worked_from = time.monotonic()
            try:
                self._store.verify(seal, between=self._pace)
            except InterruptedError:
                return
        self.progress = 0.0

    def _count(self, nbytes: int) -> None:
        self.scrubbed_bytes += nbytes
        if self._stopped.is_set():
            raise InterruptedError

    def _pace(self, nbytes: int) -> None:
        """Between two chunks: as long a pause as keeps the share."""
        self.scrubbed_bytes += nbytes
        worked = time.monotonic() - self._worked_from
        if self._stopped.wait(worked * (1 / SHARE - 1)):
            raise InterruptedError
        self._worked_from = time.monotonic()
