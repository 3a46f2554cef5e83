"""What a node knows of the durable steps of its namespaces, and what it has told of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection

from everstep.shards import Manifest
from everstep.tiers import DurableReport

_MOST_TOLD = 1000


class Committed:
    """Thread-safe. ``now`` is in Unix seconds. ``report`` is called outside the lock."""

    def __init__(self, *, now: Callable[[], float], report: Callable[[DurableReport], None]) -> None:
        self._now = now
        self._report = report
        self._news = threading.Condition()
        self._manifests: dict[tuple[str, int], Manifest] = {}
        self._newest: dict[str, tuple[int, float]] = {}
        self._at_start: dict[str, int] = {}
        self._told: deque[DurableReport] = deque(maxlen=_MOST_TOLD)

    def newest(self, namespace: str) -> tuple[int, float] | None:
        with self._news:
            return self._newest.get(namespace)

    def find(self, namespace: str, step: int) -> Manifest | None:
        """Of a step that is held here; of others nothing is remembered but the newest."""
        with self._news:
            return self._manifests.get((namespace, step))

    def wait(self, namespace: str, step: int, seconds: float) -> bool:
        with self._news:
            return self._news.wait_for(lambda: (namespace, step) in self._manifests, seconds)

    def told(self) -> tuple[DurableReport, ...]:
        with self._news:
            return tuple(self._told)

    def newest_at_start(self, namespace: str) -> int | None:
        """The newest durable step when this process first looked, -1 if there was none; None: it has not looked."""
        with self._news:
            return self._at_start.get(namespace)

    def learn(self, namespace: str, newest: Manifest | None) -> None:
        with self._news:
            self._at_start[namespace] = newest.step if newest is not None else -1
            if newest is not None:
                self._newest[namespace] = (newest.step, newest.committed_at)

    def add(self, manifest: Manifest, *, is_ours: bool) -> None:
        """A step is durable. ``is_ours``: this node tells of it."""
        namespace, step = manifest.namespace, manifest.step
        with self._news:
            is_new = self._manifests.get((namespace, step)) != manifest
            self._manifests[namespace, step] = manifest
            if step >= self._newest.get(namespace, (-1, 0.0))[0]:
                self._newest[namespace] = (step, manifest.committed_at)
            self._news.notify_all()
        if is_new and is_ours:
            self._tell(manifest, manifest.committed_at)

    def superseded(self, manifest: Manifest) -> None:
        """It is not durable any more. What is the newest has to be learned anew, if it was that."""
        namespace, step = manifest.namespace, manifest.step
        with self._news:
            self._manifests.pop((namespace, step), None)
            if self._newest.get(namespace, (-1, 0.0))[0] == step:
                del self._newest[namespace]
                self._at_start.pop(namespace, None)
        self._tell(manifest, self._now(), is_withdrawn=True)

    def keep_only(self, steps: Collection[tuple[str, int]]) -> None:
        with self._news:
            self._manifests = {step: one for step, one in self._manifests.items() if step in steps}

    def _tell(self, manifest: Manifest, at: float, *, is_withdrawn: bool = False) -> None:
        report = DurableReport(
            manifest.namespace,
            manifest.step,
            manifest.world_size,
            manifest.nbytes,
            at,
            save=manifest.save,
            is_withdrawn=is_withdrawn,
        )
        with self._news:
            self._told.append(report)
        self._report(report)
