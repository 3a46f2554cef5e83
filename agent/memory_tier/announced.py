"""What other nodes have announced of late: steps that are complete, and how many copies their shards have at least.

In a large cluster a node keeps by this what it keeps, between two questions to everybody: else each announcement would have every node ask every other one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MOST_STEPS = 16


@dataclass(frozen=True)
class Announcement:
    """A step as it was told. ``copies``: how many nodes hold each of its shards, at least."""

    namespace: str
    step: int
    save: str
    world_size: int | None = None
    copies: int = 0


class Announced:
    """Thread-safe; ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, dict[int, tuple[float, Announcement]]] = {}

    def add(self, one: Announcement) -> None:
        with self._lock:
            steps = self._known.setdefault(one.namespace, {})
            steps.pop(one.step, None)
            steps[one.step] = self._clock(), one
            while len(steps) > _MOST_STEPS:
                del steps[next(iter(steps))]

    def of(self, namespace: str, *, lasts_s: float) -> Mapping[int, Announcement]:
        """By step, those that are no older than that: what was true then need not be for ever."""
        oldest = self._clock() - lasts_s
        with self._lock:
            return {step: one for step, (at, one) in self._known.get(namespace, {}).items() if at >= oldest}

    def forget(self, namespace: str) -> None:
        with self._lock:
            self._known.pop(namespace, None)
