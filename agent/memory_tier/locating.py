"""Which steps are complete, and where their shards are: from this node's seals, the other nodes' inventories, and the manifests in the object store.

A step is told only when all of it can be had now. What cannot be reached makes fewer steps visible, and is never an error: a loader that is told less
goes back further, one that is told too much fails.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial

from agent.memory_tier.announced import Announced, Announcement
from agent.memory_tier.announcing import Announcer, Pauses
from agent.memory_tier.asking import Asking
from agent.memory_tier.held import Change
from agent.memory_tier.inventories import Held, Inventories, Patience
from agent.memory_tier.manifests import Manifests
from agent.memory_tier.objects import Objects
from agent.memory_tier.peers import PeerAway, Peers
from agent.memory_tier.store import Store
from everstep.shards import Holder, Manifest, Seal, ShardKind, StepFound, belongs, complete
from everstep.tiers import TierPeer, TierPlan


@dataclass(frozen=True)
class Copy:
    """A shard on another node."""

    peer: TierPeer
    seal: Seal


@dataclass(frozen=True)
class _InMemory:
    world_size: int
    save: str
    shards: tuple[tuple[Holder, ...], ...]


class Locating:
    """Thread-safe. ``here`` is this node's door; ``clock`` is monotonic, in seconds. ``is_open`` tells namespaces that clients without a token own."""

    def __init__(
        self,
        *,
        here: Holder,
        store: Store,
        peers: Peers,
        objects: Objects,
        is_open: Callable[[str], bool],
        clock: Callable[[], float],
        is_discarded: Callable[[Seal], bool] = lambda _: False,
        patience: Patience | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self._here = here
        self._store = store
        self._peers = peers
        self._is_open = is_open
        self._zone: str | None = None
        self._replicas: Mapping[str, int] = {}
        self._announced = Announced(clock)
        self._last_told: dict[str, Announcement] = {}
        self._listeners: list[Callable[[str, int], None]] = []
        self._patience = patient = patience or Patience()
        self._asking = Asking()
        self._inventories = Inventories(
            store=store,
            peers=peers,
            asking=self._asking,
            is_open=is_open,
            is_discarded=is_discarded,
            clock=clock,
            patience=self._patience,
        )
        self._manifests = Manifests(
            objects, self._asking, clock=clock, cached_s=patient.cached_s, answer_s=patient.answer_s, away_s=patient.away_s
        )
        self._announcer = Announcer(
            node=here.node, is_complete=self._is_complete, tell=self._announce, clock=clock, pauses=pauses or Pauses()
        )

    # ------------------------------------------------------------ asked by loaders

    def steps(self, namespace: str, limit: int) -> tuple[StepFound, ...]:
        """The newest complete steps of all tiers, by number, newest first."""
        in_memory, durable = self._in_memory(namespace), self._manifests.steps(namespace)
        numbers = sorted({*in_memory, *durable}, reverse=True)
        told: list[StepFound] = []
        for number in numbers:
            if len(told) >= limit:
                break
            found = self._found(namespace, number, in_memory, durable)
            told += [found] if found is not None else []
        return tuple(told)

    def find(self, namespace: str, step: int) -> StepFound | None:
        in_memory, durable = self._in_memory(namespace), self._manifests.steps(namespace)
        return self._found(namespace, step, in_memory, durable) if step in in_memory or step in durable else None

    def copies(self, namespace: str, index: int, step: int, save: str | None = None) -> tuple[Copy, ...]:
        """Other nodes' copies of a shard, nearest first, all of the same bytes: of the youngest complete save of the step, else of the youngest."""
        held = self._inventories.held(namespace, fresh_s=self._patience.fresh_s)
        known = complete(seal for _, seal in held).get(step)
        fitting = [
            (peer, seal)
            for peer, seal in held
            if peer is not None and (seal.index, seal.step) == (index, step) and save in {None, seal.save}
        ]
        preferred = [one for one in fitting if known is not None and one[1].save == known[1]] or fitting
        if not preferred:
            return ()
        digest = _youngest(seal for _, seal in preferred).digest
        same = {peer: seal for peer, seal in preferred if seal.digest == digest}
        return tuple(Copy(peer, same[peer]) for peer in self._nearest(same))

    def manifest(self, namespace: str, step: int) -> Manifest | None:
        """Of a durable step; None also while the object store cannot be asked."""
        return self._manifests.find(namespace, step)

    # ------------------------------------------------------------ asked by retention

    def complete(self, namespace: str) -> dict[int, tuple[int, str]]:
        """Step → (world size, save) of what is complete in memory."""
        asked = complete(seal for _, seal in self._inventories.held(namespace, fresh_s=self._aged_s))
        return asked | {step: (one.world_size or 0, one.save) for step, one in self._told_of(namespace).items()}

    def spread(self, namespace: str) -> dict[int, int]:
        """Step → how many nodes hold each of its shards, at least; of what is complete in memory."""
        asked = {step: min(map(len, found.shards)) for step, found in self._in_memory(namespace, self._spread_s).items()}
        told = {step: one.copies for step, one in self._told_of(namespace).items()}
        return {step: max(asked.get(step, 0), told.get(step, 0)) for step in {*asked, *told}}

    def newest_complete(self, namespace: str) -> int | None:
        """In memory. In open namespaces the one that was written last: their clients go back to older steps without a word."""
        if not self._is_open(namespace):
            return max(self.complete(namespace), default=None)
        held = self._inventories.held(namespace, fresh_s=self._aged_s)
        found = complete(seal for _, seal in held)
        if not found:
            return None
        heads = (seal for _, seal in held if seal.kind is ShardKind.METADATA and found.get(seal.step) == (seal.index, seal.save))
        return _youngest(heads).step

    # ------------------------------------------------------------ told

    def know(self, plan: TierPlan) -> None:
        """Who is near, and that others are to be asked anew. ``Peers`` is told by whoever tells this."""
        self._zone = plan.zone
        self._replicas = {one.name: min(one.replicas, 1 + len(plan.peers)) for one in plan.namespaces}
        self._inventories.forget()

    def heard(self, told: Announcement) -> None:
        """A peer says that a step is complete. Of few peers it is asked what they hold; of many their word is taken, for a while."""
        self._announcer.heard((told.namespace, told.step, told.save))
        if self._has_many_peers and told.world_size is not None:
            self._announced.add(told)
        else:
            self._inventories.forget(told.namespace)
        self._tell(told.namespace, told.step)

    def forget(self, namespace: str) -> None:
        """What is known of it elsewhere may be wrong by now."""
        self._announced.forget(namespace)
        self._inventories.forget(namespace)
        self._manifests.forget(namespace)

    def look_again(self, namespace: str) -> None:
        """Others are asked anew what they hold."""
        self._inventories.forget(namespace)

    def discard_elsewhere(self, namespace: str, after: int, at: float) -> None:
        """Tells all peers that training went back. Who is away is not waited for: its old copies do not count when it is back."""
        told = [
            self._asking.begin(
                (peer.node, "discard", namespace, after, at), partial(self._peers.discard, peer, namespace, after, at)
            )
            for peer in self._peers.all()
        ]
        wait(told, timeout=self._patience.answer_s)
        self.forget(namespace)

    def delete_elsewhere(self, namespace: str, path: str) -> bool:
        """Has all peers let go of what has this path at their doors; False if one of them could not be told in time."""
        told = [
            self._asking.begin((peer.node, "delete", path), partial(self._peers.delete, peer, path)) for peer in self._peers.all()
        ]
        wait(told, timeout=self._patience.answer_s)
        self.forget(namespace)
        return all(one.done() and not one.cancelled() and one.exception() is None for one in told)

    def watch(self, listener: Callable[[str, int], None]) -> None:
        """Called with (namespace, step) when a step has become complete, by whichever thread finds out. It must not block."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begins to announce."""
        self._store.watch(self._changed)
        self._announcer.start(self._store.seals())

    def close(self) -> None:
        self._announcer.close()
        self._asking.close()

    # ------------------------------------------------------------ inside

    @property
    def _has_many_peers(self) -> bool:
        return len(self._peers.all()) > self._patience.few

    @property
    def _aged_s(self) -> float:
        return self._patience.retention_s(len(self._peers.all()))

    @property
    def _spread_s(self) -> float:
        return self._aged_s if self._has_many_peers else 0.0

    def _told_of(self, namespace: str) -> Mapping[int, Announcement]:
        """In open namespaces, whose steps have no order, it counts what was asked."""
        many = self._has_many_peers and not self._is_open(namespace)
        return self._announced.of(namespace, lasts_s=self._aged_s) if many else {}

    def _in_memory(self, namespace: str, fresh_s: float = 0.0) -> dict[int, _InMemory]:
        """Who asks which steps there are goes by the answer: what others said a moment ago is not good enough."""
        held = self._inventories.held(namespace, fresh_s=fresh_s)
        found = {}
        for step, (world_size, save) in complete(seal for _, seal in held).items():
            parts = [(holder, seal) for holder, seal in held if (seal.step, seal.save) == (step, save)]
            found[step] = _InMemory(world_size, save, self._holders(parts, world_size))
        return found

    def _holders(self, parts: list[Held], world_size: int) -> tuple[tuple[Holder, ...], ...]:
        """Of each shard, those who hold the youngest bytes that belong to the save."""
        head = _youngest(seal for _, seal in parts if seal.kind is ShardKind.METADATA and seal.index == world_size)
        by_index: dict[int, list[Held]] = {}
        for holder, seal in parts:
            if belongs(seal, head) or (seal.kind, seal.index, seal.digest) == (head.kind, head.index, head.digest):
                by_index.setdefault(seal.index, []).append((holder, seal))
        return tuple(self._holders_of(by_index[index]) for index in range(world_size + 1))

    def _holders_of(self, held: list[Held]) -> tuple[Holder, ...]:
        digest = _youngest(seal for _, seal in held).digest
        same = [holder for holder, seal in held if seal.digest == digest]
        here = (self._here,) if None in same else ()
        others = self._nearest(holder for holder in same if holder is not None)
        return (*here, *(Holder(peer.node, peer.address, self._here.port) for peer in others))

    def _nearest(self, peers: Iterable[TierPeer]) -> list[TierPeer]:
        """The same zone first; among equals another order on every node, so that not all ask the same one."""

        def distance(peer: TierPeer) -> tuple[bool, int]:
            return self._zone is None or peer.zone != self._zone, zlib.crc32(f"{self._here.node} {peer.node}".encode())

        return sorted(set(peers), key=distance)

    def _found(self, namespace: str, step: int, in_memory: Mapping[int, _InMemory], durable: frozenset[int]) -> StepFound | None:
        here = in_memory.get(step)
        manifest = self._manifests.find(namespace, step) if step in durable else None
        if here is not None:
            is_durable = manifest is not None and manifest.save == here.save
            return StepFound(namespace, step, here.world_size, here.save, here.shards, is_in_memory=True, is_durable=is_durable)
        if manifest is None:
            return None
        nowhere: tuple[tuple[Holder, ...], ...] = ((),) * (manifest.world_size + 1)
        return StepFound(namespace, step, manifest.world_size, manifest.save, nowhere, is_in_memory=False, is_durable=True)

    def _changed(self, change: Change) -> None:
        self._announcer.changed(change)

    def _is_complete(self, metadata: Seal) -> bool:
        held = self._inventories.held(metadata.namespace, fresh_s=0.0)
        return complete(seal for _, seal in held).get(metadata.step) == (metadata.index, metadata.save)

    def _announce(self, metadata: Seal) -> bool:
        """Whether that was all. To many, who do not ask for themselves, it is told again when its shards have their copies."""
        namespace, step = metadata.namespace, metadata.step
        found = self._in_memory(namespace, self._patience.fresh_s).get(step) if self._has_many_peers else None
        copies = min(map(len, found.shards)) if found is not None else 0
        told = Announcement(namespace, step, metadata.save, metadata.index, copies)
        if told != self._last_told.get(namespace):
            self._last_told[namespace] = told
            self._announced.add(told)
            self._tell(namespace, step)
            for peer in self._peers.all():
                self._asking.begin((peer.node, told), partial(self._announce_to, peer, told))
        return not self._has_many_peers or copies >= self._replicas.get(namespace, 1)

    def _announce_to(self, peer: TierPeer, told: Announcement) -> None:
        try:
            self._peers.announce(peer, told)
        except PeerAway:
            return  # it asks for itself when it is back

    def _tell(self, namespace: str, step: int) -> None:
        for listener in self._listeners:
            listener(namespace, step)


def _youngest(seals: Iterable[Seal]) -> Seal:
    return max(seals, key=lambda seal: seal.written_at)
