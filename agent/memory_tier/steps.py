"""What a training process can ask about its namespace: in memory here, in memory elsewhere, and in the object store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from agent.memory_tier.discards import Discards
from agent.memory_tier.draining import Draining
from agent.memory_tier.locating import Locating
from agent.memory_tier.objects import StoreAway
from agent.memory_tier.replication import Replication
from agent.memory_tier.scrub import Scrub
from agent.memory_tier.store import Store
from everstep.shards import StepFound
from everstep.tiers import NamespacePlan, TierPlan

log = logging.getLogger(__name__)

SETTLE_S = 15.0
"""How long a question waits for what an earlier process left to be hashed: half the time of copying it."""


class Steps:
    """``now`` is in Unix seconds."""

    def __init__(
        self,
        *,
        store: Store,
        discards: Discards,
        scrub: Scrub,
        locating: Locating,
        replication: Replication,
        draining: Draining,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._discards = discards
        self._scrub = scrub
        self._locating = locating
        self._replication = replication
        self._draining = draining
        self._now = now
        self._plan: TierPlan | None = None

    def know(self, plan: TierPlan) -> None:
        self._plan = plan

    def policy(self, namespace: str) -> NamespacePlan | None:
        planned = self._plan.namespaces if self._plan else ()
        return next((one for one in planned if one.name == namespace), None)

    def find(self, namespace: str, step: int | None, limit: int) -> tuple[StepFound, ...]:
        self._scrub.wait_settled(SETTLE_S)
        if step is None:
            return self._locating.steps(namespace, limit)
        found = self._locating.find(namespace, step)
        return (found,) if found else ()

    def discard(self, namespace: str, after: int) -> tuple[int, ...]:
        """Training goes on from ``after``. Durable steps above it are superseded when the object store answers, if it does not now."""
        gone = {seal.step for seal in self._store.seals(namespace) if seal.step > after}
        at = self._now()
        self.discarded(namespace, after, at)
        self._locating.discard_elsewhere(namespace, after, at)
        try:  # last: what is marked is not committed any more
            gone.update(self._draining.supersede(namespace, after, at))
        except StoreAway as away:
            log.warning("durable steps of namespace %s after %d are superseded later: %s", namespace, after, away)
        return tuple(sorted(gone))

    def discarded(self, namespace: str, after: int, at: float) -> None:
        """Training went back at this time, as a process here or another node's tier says."""
        self._discards.mark(namespace, after, at)
        for seal in self._store.seals(namespace):
            if self._discards.covers(seal):
                why = f"training went back to step {after}"
                self._store.drop(namespace, step=seal.step, index=seal.index, save=seal.save, why=why)
        self._locating.forget(namespace)

    def learn(self, namespace: str, after: int, at: float) -> None:
        """Another node knows that training went back; this one may have been away then, and is not told a second time."""
        if not self._discards.knows(namespace, after, at):
            log.info("training of namespace %s went back to step %d while this node was away", namespace, after)
            self.discarded(namespace, after, at)
            self._draining.supersede(namespace, after, at, is_later=True)

    def wait(self, namespace: str, step: int, *, replicas: int, durable: bool, seconds: float) -> tuple[int, bool]:
        """How many copies the shards have that this node wrote of a step, at least, and whether it is durable: when as asked, or after so long."""
        deadline = time.monotonic() + seconds
        copies = self._replication.wait(namespace, step, replicas, seconds if replicas else 0.0)
        left_s = max(0.0, deadline - time.monotonic()) if durable else 0.0
        return copies, self._draining.wait(namespace, step, left_s)

    def status(self, namespace: str) -> dict[str, Any]:
        newest = self._draining.newest(namespace)
        return {
            "newest_durable_step": newest[0] if newest else None,
            "age_of_last_durable_step_s": max(0.0, self._now() - newest[1]) if newest else None,
            "outage": self._draining.backlog().outage,
        }
