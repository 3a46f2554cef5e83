"""A memory tier that is on: its parts, made in the order in which they need each other, and ended in the opposite one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from agent.memory_tier import budget
from agent.memory_tier.arriving import Arrivals
from agent.memory_tier.authority import Authority
from agent.memory_tier.backlog import Backlog
from agent.memory_tier.discards import Discards
from agent.memory_tier.door import Behind, Door
from agent.memory_tier.draining import Draining
from agent.memory_tier.gauges import Gauges
from agent.memory_tier.handover import Handover
from agent.memory_tier.held import Change
from agent.memory_tier.keeper import Keeper
from agent.memory_tier.locating import Locating
from agent.memory_tier.metrics import Counts
from agent.memory_tier.namespaces import Namespaces
from agent.memory_tier.objects import Objects
from agent.memory_tier.peers import Peers
from agent.memory_tier.relaying import Relay
from agent.memory_tier.replication import Replication
from agent.memory_tier.scrub import Scrub
from agent.memory_tier.settings import Settings
from agent.memory_tier.steps import SETTLE_S, Steps
from agent.memory_tier.store import Store
from everstep.shards import Holder
from everstep.tiers import DurableReport, TierPlan

_LOOK_S = 0.05


@dataclass(frozen=True)
class Outside:
    """What a tier asks of the machine and tells others. ``now`` is in Unix seconds."""

    now: Callable[[], float]
    rng: Random
    changed: Callable[[Change], None]
    durable: Callable[[DurableReport], None]


class Running:
    """``allocated_bytes`` is the cap, ``granule`` what sizes of segments are multiples of. Raises OSError when the folder cannot be used."""

    def __init__(self, settings: Settings, outside: Outside, *, allocated_bytes: int, granule: int) -> None:
        self._settings = settings
        self._outside = outside
        reserve = budget.reserve_of(budget.total_bytes())
        granted = budget.Budget(allocated_bytes, available=budget.available_bytes, reserve=reserve)
        self.store = Store(settings.folder, node=settings.node, budget=granted, now=outside.now, granule=granule)
        self.store.watch(outside.changed)
        self.store.adopt()
        self._authority = Authority(settings.address)
        self._namespaces = Namespaces(settings.folder / "names")
        self._discards = Discards(settings.folder / "discards.json")
        self._peers = Peers(port=settings.port)
        self._objects = Objects(settings.object_store_url, settings.environment)
        self._scrub = Scrub(self.store, every_s=settings.scrub_s)
        self._locating = self._make_locating()
        node, now, rng = settings.node, outside.now, outside.rng
        self._replication = Replication(self.store, self._peers, node=node, now=now, rng=rng)
        self.draining = self._make_draining()
        self._keeper = self._make_keeper()
        self._steps = Steps(
            store=self.store,
            discards=self._discards,
            scrub=self._scrub,
            locating=self._locating,
            replication=self._replication,
            draining=self.draining,
            now=now,
        )
        self._peers.watch(self._steps.learn)
        self._door = Door(self._behind(), address=settings.address, port=settings.port, clock=time.monotonic)
        self._handover = Handover(
            settings.handover,
            node=node,
            store=self.store,
            authority=self._authority,
            steps=self._steps,
            relieve=self._keeper.keep,
        )

    def start(self, plan: TierPlan) -> None:
        """Raises OSError when an address is taken."""
        self.know(plan)
        self.store.watch(lambda _: self._keeper.wake())
        self._locating.watch(lambda _namespace, _step: self._keeper.wake())
        self._door.start()
        self._handover.start()
        self._scrub.start()
        self._locating.start()
        self._replication.start()
        self.draining.start()
        self._keeper.start()

    def know(self, plan: TierPlan) -> None:
        """The newest plan, whole. Peers first: the others ask them at once."""
        self._authority.know(plan)
        self._peers.know(plan)
        self._locating.know(plan)
        self._replication.know(plan)
        self.draining.know(plan)
        self._steps.know(plan)
        self._keeper.know(plan)

    def finish(self, patience_s: float) -> Backlog:
        """Nothing is saved here any more; what waits to be durable still goes, if the store answers, but no longer than so long. Returns what is left."""
        self._handover.stop()
        deadline = time.monotonic() + patience_s
        while True:
            left = self.draining.backlog()
            is_going = left.nbytes and left.outage is None and self._objects.is_there
            if not is_going or time.monotonic() > deadline:
                return left
            time.sleep(_LOOK_S)  # the drain tells nobody of each shard

    def stop(self) -> None:
        """Shards stay where they are. Connections end; whoever was filling a segment has lost it."""
        self._handover.stop()
        self._door.stop()
        self._keeper.stop()
        self.draining.stop()
        self._replication.stop()
        self._locating.close()
        self._scrub.stop()
        self._peers.close()

    def _is_durable(self, report: DurableReport) -> None:
        self._locating.forget(report.namespace)
        self._outside.durable(report)

    def _make_locating(self) -> Locating:
        settings = self._settings
        return Locating(
            here=Holder(settings.node, settings.address, settings.port),
            store=self.store,
            peers=self._peers,
            objects=self._objects,
            is_open=self._authority.is_open,
            is_discarded=self._discards.covers,
            clock=time.monotonic,
        )

    def _make_draining(self) -> Draining:
        settings = self._settings
        return Draining(
            self.store,
            self._objects,
            self._peers,
            node=settings.node,
            discards=self._discards,
            now=self._outside.now,
            rng=self._outside.rng,
            report=self._is_durable,
            pace_bytes_per_s=None if settings.drain_mib_s is None else settings.drain_mib_s * budget.MIB,
        )

    def _make_keeper(self) -> Keeper:
        return Keeper(
            self.store,
            complete=self._locating,
            undrained=self.draining,
            namespaces=self._namespaces,
            is_open=self._authority.is_open,
            discards=self._discards,
            clock=time.monotonic,
        )

    def _behind(self) -> Behind:
        return Behind(
            node=self._settings.node,
            store=self.store,
            namespaces=self._namespaces,
            authority=self._authority,
            locating=self._locating,
            relay=Relay(locating=self._locating, peers=self._peers, objects=self._objects, clock=time.monotonic),
            arrivals=Arrivals(self.store),
            counts=Counts(),
            now=self._outside.now,
            settle=lambda: self._scrub.wait_settled(SETTLE_S),
            discards=self._discards.marks,
            discarded=self._steps.discarded,
            gauges=Gauges(
                store=self.store,
                scrub=self._scrub,
                objects=self._objects,
                replication=self._replication,
                draining=self.draining,
                now=self._outside.now,
            ),
        )
