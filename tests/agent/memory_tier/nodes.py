"""Nodes of a test: each with a real store in shared memory and what drains it into one real object store on disk, driven turn by turn."""

from __future__ import annotations

import os
import random
from pathlib import Path

from agent.memory_tier.budget import MIB, Budget
from agent.memory_tier.discards import Discards
from agent.memory_tier.draining import Draining
from agent.memory_tier.objects import Objects
from agent.memory_tier.peers import Peers
from agent.memory_tier.store import Sealing, Store
from everstep.shards import ShardKind
from everstep.tiers import NamespacePlan, TierPlan

KIB = 1024


class Clock:
    """Moves only when a test moves it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Node:
    """``url`` is the object store's. Nothing runs by itself: ``drain`` has it do what it would do until nothing is due."""

    def __init__(
        self, name: str, folder: Path, url: str | None, clock: Clock, *, allocated: int = 64 * MIB, environ=None, **draining
    ) -> None:
        self.name, self.clock = name, clock
        self.store = Store(folder / name, node=name, budget=Budget(allocated, available=lambda: 1 << 40, reserve=0), now=clock)
        self.store.adopt()
        self.objects = Objects(url, environ or {})
        self.peers = Peers()
        self.discards = Discards(folder / f"{name}-discards.json")
        self.reports = []
        self.draining = Draining(
            self.store,
            self.objects,
            self.peers,
            node=name,
            discards=self.discards,
            now=clock,
            rng=random.Random(name),
            report=self.reports.append,
            **draining,
        )

    def plan(self, *namespaces: NamespacePlan, **more) -> None:
        plan = TierPlan(number=1, allocation_percent=50, namespaces=namespaces or (planned(),), **more)
        self.peers.know(plan)
        self.draining.know(plan)

    def save(self, step, content: bytes, *, index=0, world=None, save="s1", is_durable=True, namespace="ns", **more):
        """A shard; with ``world`` it is the metadata shard of a world of that size."""
        kind, index = (ShardKind.DATA, index) if world is None else (ShardKind.METADATA, world)
        segment = self.store.take(namespace, index, step, len(content))
        segment.body[: len(content)] = content
        asked = Sealing(namespace, index, step, kind, len(content), save=save, is_durable=is_durable, **more)
        return self.store.seal(segment, asked)

    def drain(self, turns: int = 200) -> None:
        """Until nothing is due now."""
        for _ in range(turns):
            if self.draining.turn() > 0:
                return
        raise AssertionError("it does not come to rest")

    def go_back(self, after: int, namespace: str = "ns") -> tuple[int, ...]:
        """As the tier does when training goes on from an older step. Raises StoreAway."""
        at = self.clock()
        self.discards.mark(namespace, after, at)
        for seal in self.store.seals(namespace):
            if self.discards.covers(seal):
                self.store.drop(namespace, step=seal.step, index=seal.index, why=f"training went back to step {after}")
        return self.draining.supersede(namespace, after, at)

    def close(self) -> None:
        self.draining.stop()
        self.peers.close()


def planned(name: str = "ns", **more) -> NamespacePlan:
    return NamespacePlan(name=name, job="job", token="token", **more)


def content(nbytes: int = 9 * KIB) -> bytes:
    return os.urandom(nbytes)


def settle(clock: Clock, *nodes: Node, seconds: float = 30.0) -> None:
    """Lets time pass for all nodes together, in small steps."""
    until = clock.now + seconds
    while clock.now < until:
        for node in nodes:
            node.drain()
        clock.now += 0.1
