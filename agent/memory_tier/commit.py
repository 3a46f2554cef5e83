"""The durable commit: how a step comes to be in the object store, whole or not at all, whoever dies at whatever moment.

    1. a shard's bytes             (its old seal, if another one stands there, goes first: bytes are never told by a seal that is not theirs)
    2. its seal beside it
    3. the manifest, by conditional create, when the seals of all shards of one save stand there: whoever put the last one does it

So a manifest never stands without all its shards, and a shard that stands there with the right seal is not sent again after a crash. What was left
without a manifest is written over by the next save of the step, and swept with the step otherwise. The manifest of another save of the same step is
moved away before the first of its shards is touched. Readers of AWS's package take a step for complete when every rank has a folder for it: so
what lies in the folder of rank 0, its shard and the metadata, comes after all others (``Durable.lacking``).

Of two saves of a step the younger counts, whoever comes last: a node that was away and still has an older one leaves the younger alone (``Overtaken``). Two
that write at the same moment find out: who puts looks for a manifest once more after its seal, who commits looks at the seals once more after its manifest,
and whoever then sees another's takes the manifest away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from everstep.shards import (
    Manifest,
    Seal,
    ShardKind,
    belongs,
    manifest_key,
    manifest_of,
    manifest_step,
    manifests_prefix,
    seal_key,
    shard_key,
    superseded_key,
)

from .objects import AlreadyThere, NotThere, Objects

_LOOKS_AT_ONCE = 16
_PIECE_BYTES = 8 << 20
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading a file raises that is no manifest, or no seal."""

Pieces = Callable[[memoryview], Iterator[memoryview]]


class Overtaken(Exception):
    """A younger save of the step stands in the store: this one is nobody's any more. The words are for an operator."""


class Durable:
    """The steps in the object store. Every method raises StoreAway."""

    def __init__(
        self, objects: Objects, *, pieces: Pieces | None = None, superseded: Callable[[Manifest], None] = lambda _: None
    ) -> None:
        """``pieces`` cuts a body and hands it out at the pace that it likes; without it a body is sent as fast as it goes.

        ``superseded`` is told each manifest that has been moved away.
        """
        self._objects = objects
        self._superseded = superseded
        self._pieces = pieces
        self._looks = ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="everstep-look")

    def close(self) -> None:
        self._looks.shutdown(cancel_futures=True)

    def manifest(self, namespace: str, step: int) -> Manifest | None:
        try:
            return Manifest.from_json(self._objects.look(manifest_key(namespace, step)))
        except (NotThere, *_UNREADABLE):
            return None

    def steps(self, namespace: str) -> tuple[int, ...]:
        """The durable steps of a namespace, oldest first."""
        found = (manifest_step(key) for key in self._objects.list(manifests_prefix(namespace)))
        return tuple(sorted(step for step in found if step is not None))

    def put(self, seal: Seal, body: memoryview) -> Manifest | None:
        """Steps 1 and 2 for one shard. Returns the manifest, when the step is found to be durable already with this very shard in it.

        Raises:
            Overtaken: nothing was put.
        """
        manifest = self.manifest(seal.namespace, seal.step)
        if manifest is not None and covers(manifest, seal):
            return manifest
        if manifest is not None:
            _require_younger(seal, self.head(seal.namespace, seal.step))
            self.supersede(manifest)
        if self._is_put(seal):
            return None
        self._objects.sweep(shard_key_of(seal))
        self._objects.put(shard_key_of(seal), body, pieces=None if self._pieces is None else self._pieces(body))
        self._objects.put(seal_key_of(seal), json.dumps(seal.to_wire(), separators=(",", ":")).encode())
        late = self.manifest(seal.namespace, seal.step)
        if late is not None and not covers(late, seal):
            self.supersede(late)  # created meanwhile, of bytes that have just been written over
        return None

    def remove(self, seal: Seal) -> None:
        """Takes back a shard of a step that will never be committed. One that is part of a durable step stays, as does one of another save."""
        manifest = self.manifest(seal.namespace, seal.step)
        standing = self._seal(seal_key_of(seal))
        if (manifest is None or not covers(manifest, seal)) and standing is not None and _content(standing) == _content(seal):
            self._objects.delete(seal_key_of(seal))
            self._objects.delete(shard_key_of(seal))

    def head(self, namespace: str, step: int) -> Seal | None:
        """The seal of a step's metadata, if it has been put."""
        return self._seal(seal_key(namespace, 0, step, 0))

    def lacking(self, head: Seal, found: dict[int, Seal], *, without: int | None = None) -> int | None:
        """The index of a data shard of ``head``'s save whose seal is not there yet; None: all are there. ``found`` remembers those that are."""
        wanted = [index for index in range(head.index) if index != without and index not in found]
        for start in range(0, len(wanted), _LOOKS_AT_ONCE):
            batch = wanted[start : start + _LOOKS_AT_ONCE]
            keys = [seal_key(head.namespace, index, head.step, head.index) for index in batch]
            seals = zip(batch, self._looks.map(self._seal, keys), strict=True)
            found.update({index: seal for index, seal in seals if seal is not None and belongs(seal, head)})
            missing = next((index for index in batch if index not in found), None)
            if missing is not None:
                return missing
        return None

    def commit(self, head: Seal, found: dict[int, Seal], now: float) -> Manifest | None:
        """Step 3, when all seals are there. Returns the manifest that then stands there, made by us or by somebody else; None: not all are there."""
        if self.lacking(head, found) is not None:
            return None
        manifest = manifest_of((head, *found.values()), head.step, at=now)
        if manifest is None:
            return None
        while True:
            try:
                self._objects.create(manifest_key(head.namespace, head.step), manifest.to_json())
            except AlreadyThere:
                standing = self.manifest(head.namespace, head.step)
                if standing is not None and covers(standing, head):
                    return standing
                if not self._still_stands(head, found):
                    return None
                if standing is not None:
                    self.supersede(standing)  # the seals, just seen, say that its bytes have gone
                else:
                    self._clear(head.namespace, head.step)
            else:
                if self._still_stands(head, found):
                    return manifest
                self.supersede(manifest)
                return None

    def supersede(self, manifest: Manifest) -> None:
        """Training went back before this step and on from there, or writes it again: nobody is to load it any more."""
        namespace, step = manifest.namespace, manifest.step
        self._objects.put(superseded_key(namespace, step, manifest.save), manifest.to_json())
        self._objects.delete(manifest_key(namespace, step))
        self._superseded(manifest)

    def _still_stands(self, head: Seal, found: dict[int, Seal]) -> bool:
        """Whether all seals of a save are there now, whatever was seen before; what was seen is forgotten if not."""
        standing = self.head(head.namespace, head.step)
        if standing is not None and _content(standing) == _content(head) and self.lacking(head, {}) is None:
            return True
        found.clear()
        return False

    def _clear(self, namespace: str, step: int) -> None:
        """A manifest that nobody can read would be in the way of every other one for ever."""
        try:
            Manifest.from_json(self._objects.look(manifest_key(namespace, step)))
        except NotThere:
            return
        except _UNREADABLE:
            self._objects.delete(manifest_key(namespace, step))

    def _is_put(self, seal: Seal) -> bool:
        """Whether a shard stands there with its seal. One with another seal stands there without one after this. Raises Overtaken."""
        key = seal_key_of(seal)
        try:
            told = self._objects.look(key)
        except NotThere:
            return False
        standing = _read(told)
        if standing is not None and _content(standing) == _content(seal):
            return True
        _require_younger(seal, standing)
        self._objects.delete(key)
        return False

    def _seal(self, key: str) -> Seal | None:
        try:
            return _read(self._objects.look(key))
        except NotThere:
            return None


def covers(manifest: Manifest, seal: Seal) -> bool:
    """Whether a durable step holds this very shard."""
    there = manifest.shards[seal.index] if seal.index < len(manifest.shards) else None
    return there is not None and manifest.save == seal.save and there.digest == seal.digest and there.kind is seal.kind


def _require_younger(seal: Seal, standing: Seal | None) -> None:
    """Raises Overtaken."""
    if standing is not None and standing.save != seal.save and standing.written_at > seal.written_at:
        message = "a younger save of it has gone to the object store"
        raise Overtaken(message)


def paced(bytes_per_s: float, wait: Callable[[float], object]) -> Pieces:
    """Pieces of which the next one is handed out when the one before has had its time."""

    def pieces(body: memoryview) -> Iterator[memoryview]:
        for start in range(0, body.nbytes, _PIECE_BYTES):
            piece = body[start : start + _PIECE_BYTES]
            yield piece
            wait(piece.nbytes / bytes_per_s)

    return pieces


def shard_key_of(seal: Seal) -> str:
    return shard_key(seal.namespace, seal.index, seal.step, _world_size(seal))


def seal_key_of(seal: Seal) -> str:
    return seal_key(seal.namespace, seal.index, seal.step, _world_size(seal))


def _world_size(seal: Seal) -> int:
    """As far as a key depends on it: only the metadata shard's index is the size of its world."""
    return seal.index if seal.kind is ShardKind.METADATA else seal.index + 1


def _read(told: bytes) -> Seal | None:
    try:
        return Seal.from_wire(json.loads(told))
    except _UNREADABLE:
        return None


def _content(seal: Seal) -> tuple[str, str, int, ShardKind]:
    """What replicas of a shard have in common: each node stamps its own."""
    return seal.save, seal.digest, seal.size, seal.kind
