"""The object store as the library sees it: durable steps are read from it, and written to it where no memory tier drains them.

The commit protocol is that of ``everstep.shards``: a shard, then its seal beside it, then, by whoever put the last seal of a step, the manifest,
created and never overwritten. A step without a manifest does not exist, whatever lies there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from everstep.checkpoint.object_store import open_store
from everstep.errors import CheckpointUnreadable
from everstep.shards import (
    Manifest,
    Seal,
    ShardKind,
    manifest_key,
    manifest_of,
    manifest_step,
    manifests_prefix,
    seal_key,
    shard_key,
    superseded_key,
)

_RANGE = 16 << 20
_AT_ONCE = 8
_CACHED = 256 << 10
"""So much is copied at once from the page cache: what looks at it finds it, and all that was copied, in a processor's own cache."""
_T = TypeVar("_T")
Seen = Callable[[memoryview], object]


def _unseen(_: memoryview) -> None:
    """Nobody looks."""


@dataclass
class Counts:
    """Calls and bytes. Listing is counted apart: it reads no checkpoint."""

    reads: int = 0
    lists: int = 0
    writes: int = 0
    read_bytes: int = 0


class Cold:
    """Checkpoints below ``url``, which ends in ``/checkpoints``. Every method raises OSError when the store cannot be reached."""

    def __init__(self, url: str, *, now: Callable[[], float] = time.time) -> None:
        self.url = url
        self._now = now
        self.counts = Counts()
        parts = urlsplit(url)
        self._root = Path(unquote(parts.path)) if parts.scheme == "file" else None
        if self._root is not None:
            self._root.mkdir(parents=True, exist_ok=True)
        self.store = open_store(url)
        self.readers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="everstep-cold")

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return self._root is not None

    def steps(self, namespace: str) -> tuple[int, ...]:
        """The durable steps, newest first."""
        self.counts.lists += 1
        found = (manifest_step(key) for key in self._keys(manifests_prefix(namespace)))
        return tuple(sorted((step for step in found if step is not None), reverse=True))

    def manifest(self, namespace: str, step: int) -> Manifest | None:
        text = self._small(manifest_key(namespace, step))
        try:
            return None if text is None else Manifest.from_json(text)
        except (ValueError, TypeError) as error:
            message = f"the manifest of step {step} of {namespace} in the object store cannot be read: {error}"
            raise CheckpointUnreadable(message) from error

    def open(self, key: str) -> StoredObject:
        """Raises nothing yet: what is not there is found when it is read."""
        return _File(self, self._root / key) if self._root is not None else _Ranges(self, key)

    def write(self, seal: Seal, body: memoryview) -> Manifest | None:
        """Puts a shard and its seal; commits the step if that was its last one, and then returns the manifest."""
        world_size = seal.index if seal.kind is ShardKind.METADATA else seal.index + 1
        beside = seal_key(seal.namespace, seal.index, seal.step, world_size)
        self._make_way(seal, beside)
        self._put(shard_key(seal.namespace, seal.index, seal.step, world_size), body)
        self._put(beside, json.dumps(seal.to_wire()).encode())
        self._give_way(seal.namespace, seal.step, but=seal.save)  # created meanwhile, of bytes that have just been written over
        return self._commit(seal.namespace, seal.step)

    def discard(self, namespace: str, after: int) -> tuple[int, ...]:
        """Puts aside the manifests of steps newer than ``after``: training has gone on from there. Their shards are overwritten or deleted later."""
        gone = tuple(step for step in self.steps(namespace) if step > after)
        for step in gone:
            self._give_way(namespace, step)
        return gone

    def close(self) -> None:
        self.readers.shutdown(wait=False)

    def _commit(self, namespace: str, step: int) -> Manifest | None:
        head = self._seal(seal_key(namespace, 0, step, 0))
        if head is None or self.manifest(namespace, step) is not None:
            return None
        seals = [self._seal(seal_key(namespace, index, step, head.index)) for index in range(head.index)]
        manifest = manifest_of([head, *(seal for seal in seals if seal is not None)], step, at=self._now())
        if manifest is None:
            return None
        return manifest if self._create(manifest_key(namespace, step), manifest.to_json()) else None

    def _create(self, key: str, body: bytes) -> bool:
        """False if it is there already. S3 refuses creations that run into each other, all of them perhaps: then it is tried again."""
        for is_last in (False, False, True):
            try:
                self.call(lambda: obstore.put(self.store, key, body, mode="create"))
            except FileExistsError:
                return False
            except OSError:
                if self._small(key) is not None:
                    return False
                if is_last:
                    raise
            else:
                self.counts.writes += 1
                return True
        return False

    def _make_way(self, seal: Seal, beside: str) -> None:
        """A manifest must never stand while bytes of its shards change, nor a seal beside bytes that are not its own: others would commit by it."""
        self._give_way(seal.namespace, seal.step)
        standing = self._seal(beside)
        if standing is not None and (standing.save, standing.digest) != (seal.save, seal.digest):
            with suppress(FileNotFoundError):
                self.call(lambda: obstore.delete(self.store, beside))

    def _give_way(self, namespace: str, step: int, *, but: str | None = None) -> None:
        """The step's manifest, if it has one, is put aside; one that is damaged as well, or no save of the step could ever be committed."""
        text = self._small(manifest_key(namespace, step))
        if text is None:
            return
        try:
            save = Manifest.from_json(text).save
        except (ValueError, TypeError):
            save = "damaged"
        if save == but:
            return
        self._put(superseded_key(namespace, step, save), text)
        try:
            self.call(lambda: obstore.delete(self.store, manifest_key(namespace, step)))
        except FileNotFoundError:
            return  # another rank was faster

    def _seal(self, key: str) -> Seal | None:
        text = self._small(key)
        try:
            return None if text is None else Seal.from_wire(json.loads(text))
        except (ValueError, TypeError):
            return None  # torn by a store without atomic puts: as good as not there

    def _small(self, key: str) -> bytes | None:
        self.counts.reads += 1
        try:
            return bytes(self.call(lambda: self.store.get(key).bytes()))
        except FileNotFoundError:
            return None

    def _put(self, key: str, body: bytes | memoryview) -> None:
        self.counts.writes += 1
        self.call(lambda: obstore.put(self.store, key, body))

    def _keys(self, prefix: str) -> list[str]:
        return self.call(lambda: [str(entry["path"]) for page in self.store.list(prefix) for entry in page])

    def call(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (NotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(str(error)) from error
        except (AlreadyExistsError, FileExistsError) as error:
            raise FileExistsError(str(error)) from error
        except (BaseError, OSError, ValueError) as error:
            message = f"the object store {self.url} cannot be used: {error}"
            raise OSError(message) from error


class StoredObject:
    """One object of the store, to be read here and there, and closed."""

    def __init__(self, cold: Cold) -> None:
        self._cold = cold

    def read(self, start: int, into: Sequence[memoryview], seen: Seen = _unseen) -> None:
        """Fills the buffers, one behind the other, from the object's byte ``start`` on, and shows what has come, piece by piece in order.

        Raises OSError, also if the object is shorter.
        """
        self._cold.counts.reads += 1
        self._cold.counts.read_bytes += sum(len(buffer) for buffer in into)
        self._read(start, into, seen)

    def close(self) -> None:
        """It may be read again, and is opened anew then."""

    def _read(self, start: int, into: Sequence[memoryview], seen: Seen) -> None:
        raise NotImplementedError


class _Ranges(StoredObject):
    """By ranges, several at once."""

    def __init__(self, cold: Cold, key: str) -> None:
        super().__init__(cold)
        self._key = key

    def _read(self, start: int, into: Sequence[memoryview], seen: Seen) -> None:
        runs = _runs(start, into)
        if len(runs) == 1:
            self._read_range(*runs[0])
        else:
            for done in [self._cold.readers.submit(self._read_range, at, buffers) for at, buffers in runs]:
                done.result()
        for buffer in into:
            seen(buffer)

    def _read_range(self, start: int, into: Sequence[memoryview]) -> None:
        wanted = sum(len(buffer) for buffer in into)
        told = memoryview(self._cold.call(lambda: self._cold.store.get_range(self._key, start=start, length=wanted))).cast("B")
        if len(told) != wanted:
            message = f"{self._key} ends {wanted - len(told)} bytes too early"
            raise OSError(message)
        for buffer in into:
            buffer[:] = told[: len(buffer)]
            told = told[len(buffer) :]


class _File(StoredObject):
    """Straight from the page cache into place: no second copy. ``preadv`` lets other threads run.

    It stays open: the kernel reads ahead for as long as a file is, and begins anew with each opening.
    """

    def __init__(self, cold: Cold, path: Path) -> None:
        super().__init__(cold)
        self._path = path
        self._descriptor: int | None = None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _read(self, start: int, into: Sequence[memoryview], seen: Seen) -> None:
        descriptor = self._opened()
        for buffer in into:
            done = 0
            while done < len(buffer):
                piece = buffer[done : done + _CACHED]
                got = os.preadv(descriptor, (piece,), start + done)
                if not got:
                    message = f"{self._path} ends too early"
                    raise OSError(message)
                seen(piece[:got])
                done += got
            start += len(buffer)

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # more is read ahead
        return self._descriptor


def _runs(start: int, into: Sequence[memoryview]) -> list[tuple[int, list[memoryview]]]:
    """Cuts a long read into ranges of at most ``_RANGE`` bytes: (where it starts, its buffers)."""
    runs: list[tuple[int, list[memoryview]]] = []
    room = 0
    for buffer in into:
        rest = buffer
        while len(rest):
            if not room:
                runs.append((start, []))
                room = _RANGE
            piece, rest = rest[:room], rest[room:]
            runs[-1][1].append(piece)
            start += len(piece)
            room -= len(piece)
    return runs
