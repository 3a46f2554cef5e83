"""Applies retention: after every change on this node, every word of a complete step, every plan, and now and then.

The step before the newest complete one goes only when the newest one has its replicas, or has had its time to get them: until then the loss of one node
could take the newest step, and the one before would be the newest that is left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from agent.memory_tier.discards import Discards
from agent.memory_tier.namespaces import STEPS_RETAINED, Namespaces
from agent.memory_tier.store import Store
from everstep.tiers import NamespacePlan, TierPlan

log = logging.getLogger(__name__)

GATHER_S = 0.05
EVERY_S = 5.0
UNSETTLED_S = 0.5
"""How long until it is looked again whether the newest complete step has its replicas by now."""
REPLICAS_PATIENCE_S = 60.0
"""How long a complete step may lack replicas before it counts as the newest nevertheless: peers may have no room."""


class Complete(Protocol):
    """What of it is complete in memory, on all nodes that can be asked."""

    def complete(self, namespace: str) -> Mapping[int, tuple[int, str]]: ...

    def newest_complete(self, namespace: str) -> int | None: ...

    def spread(self, namespace: str) -> Mapping[int, int]:
        """Step → how many nodes hold each of its shards, at least."""
        ...


class Undrained(Protocol):
    def protected(self, namespace: str) -> Collection[int]: ...

    def has_left(self, namespace: str) -> bool: ...


class Keeper:
    """A thread of its own. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        store: Store,
        *,
        complete: Complete,
        undrained: Undrained,
        namespaces: Namespaces,
        is_open: Callable[[str], bool],
        discards: Discards,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._complete = complete
        self._undrained = undrained
        self._namespaces = namespaces
        self._is_open = is_open
        self._discards = discards
        self._clock = clock
        self._plan: TierPlan | None = None
        self._seen: dict[tuple[str, int, str], float] = {}
        self._keeping = threading.Lock()
        self._is_unsettled = False
        self._any = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def know(self, plan: TierPlan) -> None:
        self._plan = plan
        self.wake()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Something has changed. Does not block."""
        self._any.set()

    def keep(self) -> None:
        """All namespaces, once; in the caller's thread."""
        with self._keeping:
            self._is_unsettled = False
            self._store.heal()
            self._keep_all(self._plan)

    def _keep_all(self, plan: TierPlan | None) -> None:
        planned = {one.name: one for one in plan.namespaces} if plan else {}
        for namespace in self._store.namespaces():
            if plan is not None and namespace in plan.ended and namespace not in planned:
                if not self._undrained.has_left(namespace):
                    self._store.drop(namespace, why="its job has ended")
                    self._discards.forget(namespace)
                continue
            self._keep(namespace, planned.get(namespace), nodes=1 + len(plan.peers) if plan else 1)
        self._store.tidy()

    def _drop_discarded(self, namespace: str) -> None:
        """Replicas of the steps before training went back may still have been under way then."""
        for seal in self._store.seals(namespace):
            if self._discards.covers(seal):
                self._store.drop(namespace, step=seal.step, index=seal.index, save=seal.save, why="training went back before it")

    def _keep(self, namespace: str, planned: NamespacePlan | None, *, nodes: int) -> None:
        for step in planned.dropped if planned else ():
            self._store.drop(namespace, step=step, why="it is deleted")
        self._drop_discarded(namespace)
        complete = self._complete.complete(namespace)
        made = self._namespaces.get(namespace)
        keep = planned.keep_in_memory if planned else made.steps_retained if made else STEPS_RETAINED
        self._store.retain(
            namespace,
            keep=keep,
            newest_complete=self._newest(namespace, complete, min(planned.replicas, nodes) if planned else 1),
            pinned={*self._undrained.protected(namespace), *(planned.pinned if planned else ())},
            saves={step: save for step, (_, save) in complete.items()},
            is_by_time=self._is_open(namespace),
        )

    def _newest(self, namespace: str, complete: Mapping[int, tuple[int, str]], replicas: int) -> int | None:
        now = self._clock()
        keys = {(namespace, step, save) for step, (_, save) in complete.items()}
        others = {key: at for key, at in self._seen.items() if key[0] != namespace}
        self._seen = others | {key: self._seen.get(key, now) for key in keys}
        if self._is_open(namespace) or replicas < 2:  # noqa: PLR2004  (one copy: itself)
            return self._complete.newest_complete(namespace)
        waiting = {key for key in keys if self._seen[key] >= now - REPLICAS_PATIENCE_S}
        if waiting:
            spread = self._complete.spread(namespace)
            self._seen |= dict.fromkeys((key for key in waiting if spread.get(key[1], 0) >= replicas), float("-inf"))
        newest = max((key[1] for key in keys if self._seen[key] < now - REPLICAS_PATIENCE_S), default=None)
        self._is_unsettled = self._is_unsettled or newest != max(complete, default=None)
        return newest

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._any.wait(UNSETTLED_S if self._is_unsettled else EVERY_S)
            self._stopped.wait(GATHER_S)
            self._any.clear()
            try:
                self.keep()
            except Exception:
                log.exception("retention failed, trying again in %.0f s", EVERY_S)
