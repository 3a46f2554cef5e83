"""The copies of a shard that can be had now, nearest first: this node's memory, peers' memory, the object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import xxhash

from everstep.checkpoint.cold import Cold
from everstep.checkpoint.doors import Doors
from everstep.checkpoint.layout import FOOTER_BYTES, Layout, read_tail, tail_length
from everstep.checkpoint.memory import Memory
from everstep.checkpoint.segments import Lease
from everstep.errors import CheckpointUnreadable
from everstep.shards import Holder, Manifest, StepFound, shard_key

if TYPE_CHECKING:
    from everstep.checkpoint.tiers import Tiers

_HASHED_AT_ONCE = 4 << 20
_HASHED_BEHIND = 128 << 20
"""So much is read at once where reading is waiting: a store reads as many ranges beside each other as that has."""
_LIKELY_TAIL = 64 << 10


class Copy:
    """One copy of one shard. ``source`` is "memory", "peer" or "store"; ``where`` is for a person; ``digest`` "" if nobody knows it."""

    def __init__(self, source: str, where: str, size: int, digest: str) -> None:
        self.source = source
        self.where = where
        self.size = size
        self.digest = digest
        self.body: memoryview | None = None
        self._layout: Layout | None = None

    def read(self, start: int, into: Sequence[memoryview]) -> None:
        """Fills the buffers, one behind the other. Raises OSError."""
        raise NotImplementedError

    def read_hashed(self, into: Sequence[memoryview]) -> str:
        """Fills the buffers with all of it, and hashes what has come while more is on its way. Returns the digest. Raises OSError."""
        hashing, start = Hashing(), 0
        with ThreadPoolExecutor(1, thread_name_prefix="everstep-verify") as thread:
            done = []
            for parts in _cut(into, _HASHED_BEHIND):
                self.read(start, parts)
                start += sum(map(len, parts))
                done.append(thread.submit(hashing.add, *parts))
            for one in done:
                one.result()
        return hashing.digest

    def doubt(self) -> None:
        """It was read and was not good: whoever keeps it is told, where that is known to help."""

    def close(self) -> None:
        """Nothing of it is used any more."""

    def whole(self) -> bytes:
        """All of it, compared with its digest: for the metadata shard, which is small. Raises OSError, CheckpointUnreadable."""
        body = bytearray(self.size)
        self.read(0, [memoryview(body)])
        self.require(digest_of([memoryview(body)]))
        return bytes(body)

    def layout(self) -> Layout:
        """What lies where in it. Raises OSError, CheckpointUnreadable."""
        if self._layout is None:
            tail = self._last(min(self.size, _LIKELY_TAIL))
            length = tail_length(tail[-FOOTER_BYTES:])
            tail = tail[-length:] if length <= len(tail) else self._last(min(length, self.size))
            self._layout = read_tail(tail, self.size)
        return self._layout

    def require(self, digest: str) -> None:
        """Raises CheckpointUnreadable unless that is the copy's digest."""
        if self.digest and digest != self.digest:
            message = f"its checksum is {digest} where {self.digest} was saved"
            raise CheckpointUnreadable(message)

    def _last(self, nbytes: int) -> bytes:
        tail = bytearray(nbytes)
        self.read(self.size - nbytes, [memoryview(tail)])
        return bytes(tail)


class LocalCopy(Copy):
    """A segment of this node. ``body`` is its mapping."""

    def __init__(self, lease: Lease, memory: Memory) -> None:
        super().__init__("memory", "this node's memory", lease.seal.size, lease.seal.digest)
        self.lease = lease
        self.body = lease.view
        self._memory = memory

    def read(self, start: int, into: Sequence[memoryview]) -> None:
        for buffer in into:
            buffer[:] = self.lease.view[start : start + len(buffer)]
            start += len(buffer)

    def doubt(self) -> None:
        seal = self.lease.seal
        self._memory.doubt(seal.index, seal.step, seal.save)

    def close(self) -> None:
        self.body = None
        self.lease.close()


class PeerCopy(Copy):
    def __init__(self, doors: Doors, holder: Holder, index: int, found: StepFound) -> None:
        told = doors.ask(holder, index, found.step)
        if told.save != found.save:
            message = f"it now has another save ({told.save!r}) of the step than {found.save!r}"
            raise CheckpointUnreadable(message)
        super().__init__("peer", f"the memory of node {holder.node}", told.size, told.digest)
        self._doors = doors
        self._place = (holder, index, found.step)

    def read(self, start: int, into: Sequence[memoryview]) -> None:
        holder, index, step = self._place
        self._doors.fetch(holder, index, step, start, into)


class StoredCopy(Copy):
    def __init__(self, cold: Cold, manifest: Manifest, index: int) -> None:
        shard = manifest.shards[index]
        super().__init__("store", "the object store", shard.size, shard.digest)
        self._is_local = cold.is_local
        self._object = cold.open(shard_key(manifest.namespace, index, manifest.step, manifest.world_size))

    def read(self, start: int, into: Sequence[memoryview]) -> None:
        self._object.read(start, into)

    def read_hashed(self, into: Sequence[memoryview]) -> str:
        """From this machine's page cache in this thread: there is nothing to wait for, and a piece is hashed best where it has just been copied."""
        if not self._is_local:
            return super().read_hashed(into)
        hashing = Hashing()
        self._object.read(0, into, hashing.add)
        return hashing.digest

    def close(self) -> None:
        self._object.close()


def copies_of(tiers: Tiers, found: StepFound, index: int) -> Iterator[tuple[str, Callable[[], Copy | None]]]:
    """What to try, one behind the other: where, and how to open it. Opening gives None where there is none, and raises as reading does."""
    if tiers.memory is not None and found.is_in_memory:
        yield "this node's memory", partial(_lent, tiers.memory, found, index)
    for holder in found.shards[index]:
        if holder.node != tiers.settings.node:
            yield f"the memory of node {holder.node}", partial(PeerCopy, tiers.doors, holder, index, found)
    if tiers.cold is not None:
        yield "the object store", partial(_stored, tiers.cold, found, index)


class Hashing:
    """``shards.DIGEST`` of what is added. In pieces that fit a cache; hashing lets other threads run."""

    def __init__(self) -> None:
        self._hashing = xxhash.xxh3_128()

    def add(self, *parts: memoryview) -> None:
        for part in parts:
            for start in range(0, len(part), _HASHED_AT_ONCE):
                self._hashing.update(part[start : start + _HASHED_AT_ONCE])

    @property
    def digest(self) -> str:
        return self._hashing.hexdigest()


def digest_of(parts: Sequence[memoryview]) -> str:
    """``shards.DIGEST`` of the bytes, one behind the other."""
    hashing = Hashing()
    hashing.add(*parts)
    return hashing.digest


def _lent(memory: Memory, found: StepFound, index: int) -> Copy | None:
    try:
        lease = memory.lease(index, found.step, found.save)
    except EOFError:  # it is shorter than its seal says
        memory.doubt(index, found.step, found.save)
        raise
    return None if lease is None else LocalCopy(lease, memory)


def _stored(cold: Cold, found: StepFound, index: int) -> Copy | None:
    manifest = cold.manifest(found.namespace, found.step)
    return None if manifest is None or manifest.save != found.save else StoredCopy(cold, manifest, index)


def _cut(buffers: Sequence[memoryview], size: int) -> Iterator[list[memoryview]]:
    """In parts of ``size`` bytes: the buffers of each."""
    parts: list[memoryview] = []
    room = size
    for buffer in buffers:
        rest = buffer
        while len(rest):
            parts.append(rest[:room])
            rest = rest[len(parts[-1]) :]
            room -= len(parts[-1])
            if not room:
                yield parts
                parts, room = [], size
    if parts:
        yield parts
