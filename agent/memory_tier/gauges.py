"""What the parts of a tier know of themselves now, for its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.memory_tier.draining import Draining
from agent.memory_tier.metrics import Sample
from agent.memory_tier.objects import Objects
from agent.memory_tier.replication import Replication
from agent.memory_tier.scrub import Scrub
from agent.memory_tier.store import Store

_CALLS = ("reads", "lookups", "lists", "writes", "deletes", "failures")


class Gauges:
    """``now`` is in Unix seconds."""

    def __init__(
        self,
        *,
        store: Store,
        scrub: Scrub,
        objects: Objects,
        replication: Replication,
        draining: Draining,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._scrub = scrub
        self._objects = objects
        self._replication = replication
        self._draining = draining
        self._now = now

    def __call__(self) -> tuple[Sample, ...]:
        lag, backlog, now = self._replication.lag(), self._draining.backlog(), self._now()
        values = {
            "everstep_tier_scrubbed_bytes_total": self._scrub.scrubbed_bytes,
            "everstep_tier_scrub_progress_ratio": self._scrub.progress,
            "everstep_tier_replication_lag_seconds": 0.0 if lag.since is None else max(0.0, now - lag.since),
            "everstep_tier_replicas_missing": lag.shards,
            "everstep_tier_backlog_bytes": backlog.nbytes,
            "everstep_tier_store_is_out": int(backlog.outage is not None),
        }
        calls = [Sample("everstep_tier_store_calls_total", self._objects.counts[kind], {"kind": kind}) for kind in _CALLS]
        return (*(Sample(name, value) for name, value in values.items()), *calls, *self._ages(now))

    def _ages(self, now: float) -> Iterator[Sample]:
        for namespace in self._store.namespaces():
            newest = self._draining.newest(namespace)
            if newest is not None:
                yield Sample("everstep_age_of_last_durable_step_seconds", max(0.0, now - newest[1]), {"namespace": namespace})
