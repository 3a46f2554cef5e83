"""Durable steps that training went back from: their manifests are moved away, also those that somebody was just about to create.

Every node of a job hears of it, and each does all of it: what has been moved by another one is not there any more. A second pass some seconds later finds
what a node has committed that had not heard of it yet. A pass that fails, because the store is out, is made when it answers.
"""

from __future__ import annotations

import threading

from .commit import Durable
from .discards import Discard

AGAIN_S = 15.0


class Superseding:
    """Thread-safe. Times are in Unix seconds."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self._lock = threading.Lock()
        self._passes: dict[tuple[str, Discard], list[float]] = {}

    def ask(self, namespace: str, discard: Discard, now: float) -> None:
        """Two passes: now, and once more."""
        with self._lock:
            self._passes[namespace, discard] = [now, now + AGAIN_S]

    def due(self, now: float) -> tuple[str, Discard] | None:
        with self._lock:
            return next((asked for asked, times in self._passes.items() if times[0] <= now), None)

    def next_at(self) -> float | None:
        with self._lock:
            return min((times[0] for times in self._passes.values()), default=None)

    def carry_out(self, namespace: str, discard: Discard) -> tuple[int, ...]:
        """One pass; the steps whose manifests it has moved. Raises StoreAway: it stays due."""
        gone = [step for step in self._durable.steps(namespace) if step > discard.after and self._move(namespace, step, discard.at)]
        with self._lock:
            times = self._passes.get((namespace, discard), [])
            del times[:1]
            if not times:
                self._passes.pop((namespace, discard), None)
        return tuple(gone)

    def _move(self, namespace: str, step: int, at: float) -> bool:
        """A step that was saved again since then is somebody's, whenever its manifest was created."""
        manifest = self._durable.manifest(namespace, step)
        if manifest is None:
            return False
        if manifest.committed_at > at:
            head = self._durable.head(namespace, step)
            if head is None or head.save != manifest.save or head.written_at > at:
                return False
        self._durable.supersede(manifest)
        return True
