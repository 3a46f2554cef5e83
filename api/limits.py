"""How often a key may call: a bucket of tokens each, in the memory of this process.

A request takes one; they come back at ``rate`` a second, up to ``burst``. Several API processes each count for themselves.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

_MOST_KEYS: Final = 10_000
_DISORDER: Final = timedelta(seconds=5)
"""Threads come here with times that are older than the last one's. One that is older still comes from a clock that was set back."""


class Throttled(Exception):
    """Rate exceeded"""  # noqa: D415  (AWS's words)

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(type(self).__doc__)
        self.retry_after_s = retry_after_s


@dataclass
class _Bucket:
    tokens: float
    at: datetime


@dataclass
class Meter:
    """``rate`` is in requests a second; 0 counts nothing."""

    rate: float
    burst: float
    _buckets: dict[str, _Bucket] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, key_id: str, now: datetime) -> None:
        """Raises Throttled: this key has called too often; it says when it may again."""
        if self.rate <= 0:
            return
        with self._lock:
            bucket = self._buckets.get(key_id)
            if bucket is None:
                bucket = self._first(key_id, now)
            passed_s = max(0.0, (now - bucket.at).total_seconds())
            bucket.tokens = min(self.burst, bucket.tokens + passed_s * self.rate)
            if now > bucket.at or bucket.at - now > _DISORDER:
                bucket.at = now
            if bucket.tokens < 1:
                raise Throttled((1 - bucket.tokens) / self.rate)
            bucket.tokens -= 1

    def left(self, key_id: str) -> int | None:
        """How many more requests this key may make at once, as of its last; None if nothing is counted."""
        with self._lock:
            bucket = self._buckets.get(key_id)
        return None if bucket is None or self.rate <= 0 else int(bucket.tokens)

    def _first(self, key_id: str, now: datetime) -> _Bucket:
        """Authenticated keys only come here, so there are no more than were given; the bound is for the memory of years."""
        if len(self._buckets) >= _MOST_KEYS:
            self._buckets.clear()
        return self._buckets.setdefault(key_id, _Bucket(self.burst, now))
