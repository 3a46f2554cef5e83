"""A shard that is not here, passed through chunk by chunk: from another node's memory, else from the object store. It is never held here.

All copies of a shard have one digest, so that when one source fails another goes on with the next byte. A whole shard is hashed as it passes, and its
last chunk is sent only if the digest is right; what does not fit is never sent whole, and the copy that it came from is avoided for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Protocol

from agent.memory_tier.asking import Asking
from agent.memory_tier.hashing import Digest
from agent.memory_tier.locating import Copy, Locating
from agent.memory_tier.objects import NotThere, Objects, StoreAway
from agent.memory_tier.peers import PeerAway, Peers
from everstep.shards import Manifest, ManifestShard, Seal, ShardKind, shard_key, shard_meta

CHUNK_BYTES = 2 << 20
"""Two of these are held for each shard on its way: one that is being sent, and the next."""
_AVOIDED_S = 60.0


class Away(Exception):
    """These bytes cannot be had from any copy now."""


class Spoilt(Exception):
    """What was passed on did not have its digest: it must not be taken for the shard."""


@dataclass(frozen=True)
class Outline:
    """What is known of a shard before its first byte. ``source`` is ``peer`` or ``store``."""

    size: int
    digest: str
    kind: ShardKind
    save: str
    shard_meta: str
    source: str


class Source(Protocol):
    """One copy of a shard."""

    @property
    def outline(self) -> Outline: ...

    @property
    def name(self) -> str: ...

    def read(self, start: int, into: memoryview) -> None:
        """Raises Away."""


class Relay:
    """Thread-safe. ``clock`` is monotonic, in seconds."""

    def __init__(self, *, locating: Locating, peers: Peers, objects: Objects, clock: Callable[[], float]) -> None:
        self._locating = locating
        self._peers = peers
        self._objects = objects
        self._clock = clock
        self._asking = Asking()
        self._lock = threading.Lock()
        self._avoided: dict[tuple[str, str], float] = {}

    def sources(self, namespace: str, index: int, step: int, save: str | None) -> list[Source]:
        """All copies of one and the same shard, nearest first; those that were spoilt a moment ago last."""
        copies = self._locating.copies(namespace, index, step, save)
        found: list[Source] = [_OnPeer(self._peers, copy) for copy in copies]
        manifest = self._locating.manifest(namespace, step)
        if manifest is not None and index <= manifest.world_size and save in {None, manifest.save}:
            in_store = _InStore(self._objects, manifest, manifest.shards[index])
            if not found or found[0].outline.digest == in_store.outline.digest:
                found.append(in_store)
        return sorted(found, key=self._is_avoided)

    def chunks(self, sources: list[Source], start: int, end: int) -> Iterator[memoryview]:
        """The bytes; each chunk is good until the next one is asked for.

        Raises:
            Away: no source has the next byte.
            Spoilt: the whole shard was asked for and was not what its digest says.
        """
        outline, left = sources[0].outline, list(sources)
        is_whole = (start, end) == (0, outline.size)
        while True:
            digest = Digest()
            for chunk, is_last in self._read_ahead(left, start, end):
                digest.add(chunk)
                if is_last and is_whole and digest.hex != outline.digest:
                    break
                yield chunk
            else:
                return
            self._avoid(left[0], outline.digest)
            if end - start > CHUNK_BYTES or len(left) == 1:
                message = f"the copy on {left[0].name} does not have its digest"
                raise Spoilt(message)
            del left[0]  # nothing has been passed on yet: the next copy

    def close(self) -> None:
        self._asking.close()

    def _read_ahead(self, left: list[Source], start: int, end: int) -> Iterator[tuple[memoryview, bool]]:
        """The next chunk is read while the caller still sends this one; with each, whether it is the last."""
        size = min(CHUNK_BYTES, end - start)
        rooms = cycle([memoryview(bytearray(size)) for _ in range(1 if size == end - start else 2)])
        at = start
        reading = self._begin(left, at, next(rooms)[: end - at])
        while at < end:
            chunk = reading.result()
            at += len(chunk)
            if at < end:
                reading = self._begin(left, at, next(rooms)[: end - at])
            yield chunk, at == end

    def _begin(self, left: list[Source], at: int, room: memoryview) -> Future[memoryview]:
        return self._asking.begin(object(), partial(self._read, left, at, room))

    def _read(self, left: list[Source], at: int, room: memoryview) -> memoryview:
        """From the first source that can; those that cannot are done with. Raises Away."""
        whys = []
        while left:
            try:
                left[0].read(at, room)
            except Away as away:
                whys.append(str(away))
                del left[0]
            else:
                return room
        raise Away("; ".join(whys) or "nobody holds it")

    def _avoid(self, source: Source, digest: str) -> None:
        with self._lock:
            self._avoided[source.name, digest] = self._clock() + _AVOIDED_S

    def _is_avoided(self, source: Source) -> bool:
        with self._lock:
            return self._avoided.get((source.name, source.outline.digest), float("-inf")) > self._clock()


class _OnPeer:
    def __init__(self, peers: Peers, copy: Copy) -> None:
        self._peers = peers
        self._copy = copy
        seal: Seal = copy.seal
        told = seal.shard_meta if seal.shard_meta is not None else shard_meta(seal.digest)
        self.outline = Outline(seal.size, seal.digest, seal.kind, seal.save, told, "peer")
        self.name = f"node {copy.peer.node}"

    def read(self, start: int, into: memoryview) -> None:
        try:
            self._peers.fetch(self._copy.peer, self._copy.seal, into, start)
        except PeerAway as away:
            raise Away(str(away)) from away


class _InStore:
    def __init__(self, objects: Objects, manifest: Manifest, shard: ManifestShard) -> None:
        self._objects = objects
        self._key = shard_key(manifest.namespace, shard.index, manifest.step, manifest.world_size)
        self.outline = Outline(shard.size, shard.digest, shard.kind, manifest.save, shard_meta(shard.digest), "store")
        self.name = "the object store"

    def read(self, start: int, into: memoryview) -> None:
        try:
            found = memoryview(self._objects.get_range(self._key, start, len(into)))
        except (StoreAway, NotThere) as error:
            message = f"the object store: {error}"
            raise Away(message) from error
        if len(found) != len(into):
            message = f"the object store: {self._key} ends early"
            raise Away(message)
        into[:] = found
