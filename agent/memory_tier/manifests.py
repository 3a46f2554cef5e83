"""Which steps are durable, as far as the object store can be asked. An outage makes fewer steps visible, and is no error."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent.memory_tier.asking import Asking
from agent.memory_tier.objects import NotThere, Objects, StoreAway
from everstep.shards import Manifest, manifest_key, manifest_step, manifests_prefix

_KNOWN_S = 10.0


class Manifests:
    """Thread-safe; ``clock`` is monotonic. Lists count apart from reads, and a manifest is read seldom: it is created once and never changed.

    It may be superseded all the same, and another one stand in its place: so it is read again after ``_KNOWN_S``.
    """

    def __init__(
        self, objects: Objects, asking: Asking, *, clock: Callable[[], float], cached_s: float, answer_s: float, away_s: float
    ) -> None:
        self._objects = objects
        self._asking = asking
        self._clock = clock
        self._cached_s = cached_s
        self._answer_s = answer_s
        self._away_s = away_s
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], tuple[float, Manifest]] = {}
        self._listed: dict[str, tuple[float, frozenset[int]]] = {}

    def steps(self, namespace: str) -> frozenset[int]:
        """Those that have a manifest; none while the store cannot be asked, which is then left alone for a while."""
        if not self._objects.is_there or self._objects.is_out:
            return frozenset()
        now = self._clock()
        with self._lock:
            until, steps = self._listed.get(namespace, (now, frozenset()))
        if until > now:
            return steps
        listed = self._asking.within(self._answer_s, ("list", namespace), lambda: self._list(namespace))
        steps = listed or frozenset()
        with self._lock:
            self._listed[namespace] = (self._clock() + (self._away_s if listed is None else self._cached_s), steps)
            if listed is not None:
                self._known = {key: one for key, one in self._known.items() if key[0] != namespace or key[1] in steps}
        return steps

    def find(self, namespace: str, step: int) -> Manifest | None:
        """None too while the store cannot be asked, and for a manifest that is not one."""
        if step not in self.steps(namespace):
            return None
        with self._lock:
            until, known = self._known.get((namespace, step), (float("-inf"), None))
        if known is not None and until > self._clock():
            return known
        found = self._asking.within(self._answer_s, ("look", namespace, step), lambda: self._look(namespace, step))
        if found is not None:
            with self._lock:
                self._known[namespace, step] = (self._clock() + _KNOWN_S, found)
        return found

    def forget(self, namespace: str) -> None:
        """What is known may be wrong by now: a step was written again, or bytes were not what its manifest said."""
        with self._lock:
            self._listed.pop(namespace, None)
            self._known = {key: one for key, one in self._known.items() if key[0] != namespace}

    def _list(self, namespace: str) -> frozenset[int] | None:
        try:
            keys = self._objects.list(manifests_prefix(namespace))
        except StoreAway:
            return None
        return frozenset(step for step in map(manifest_step, keys) if step is not None)

    def _look(self, namespace: str, step: int) -> Manifest | None:
        try:
            found = Manifest.from_json(self._objects.look(manifest_key(namespace, step)))
            indices = [shard.index for shard in found.shards]
        except (StoreAway, NotThere, ValueError, TypeError, AttributeError):
            return None
        is_whole = (found.namespace, found.step) == (namespace, step) and indices == list(range(found.world_size + 1))
        return found if is_whole else None
