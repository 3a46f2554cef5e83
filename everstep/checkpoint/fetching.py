"""One shard of a step into the tensors that want parts of it, from the first copy of it that is good."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from everstep.checkpoint.copies import Copy, Hashing, LocalCopy, digest_of
from everstep.checkpoint.layout import Item, Key, Layout
from everstep.checkpoint.torch_parts import memory_of, new_memory, over, span_of, strides_of
from everstep.errors import CheckpointUnreadable, EverstepError

_T = TypeVar("_T")
_MOST_OF_IT = 0.5
_WORTH_READING_OVER = 64 << 10
_PIECE = 16 << 20


class Want(Protocol):
    """A part of an item that goes somewhere. ``span`` is of the item's bytes; ``place``: its destination, if bytes can be received into it."""

    @property
    def key(self) -> Key: ...
    def span(self, item: Item) -> tuple[int, int]: ...
    def place(self, item: Item) -> memoryview | None: ...
    def take(self, span: memoryview) -> None: ...


@dataclass(frozen=True)
class Region:
    """A region of a tensor's chunk, and the tensor it goes into, of shape ``lengths``.

    ``chunk`` is where the chunk begins in its whole tensor and ``sizes`` its shape; ``offsets`` is where the region begins in the chunk.
    """

    shard: int
    name: str
    chunk: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    dtype: torch.dtype
    into: Tensor

    @property
    def key(self) -> Key:
        return (self.name, self.chunk)

    def span(self, item: Item) -> tuple[int, int]:
        start, end = (at * self.dtype.itemsize for at in span_of(self.sizes, self.offsets, self.lengths))
        if end > item.nbytes:
            message = f"{self.name!r} is smaller in its shard than the metadata says"
            raise CheckpointUnreadable(message)
        return start, end

    def place(self, item: Item) -> memoryview | None:
        start, end = self.span(item)
        fits = self.into.is_contiguous() and self.into.dtype == self.dtype and self.into.device.type == "cpu"
        return memory_of(self.into) if fits and end - start == self.into.numel() * self.dtype.itemsize else None

    def take(self, span: memoryview) -> None:
        if len(span):
            self.into.copy_(self.over(span))

    def over(self, span: memoryview) -> Tensor:
        """The region as a tensor over the bytes of its span."""
        if self.lengths == self.sizes:
            return over(span, 0, self.lengths, self.dtype)
        flat = over(span, 0, (len(span) // self.dtype.itemsize,), self.dtype)
        return flat.as_strided(self.lengths, strides_of(self.sizes))


@dataclass(frozen=True)
class Bytes:
    """An item that is no tensor, given to ``put`` once it is known to be good."""

    shard: int
    name: str
    put: Callable[[bytes], None]

    @property
    def key(self) -> Key:
        return (self.name, None)

    def span(self, item: Item) -> tuple[int, int]:
        return 0, item.nbytes

    def place(self, _: Item) -> memoryview | None:
        return None

    def take(self, span: memoryview) -> None:
        self.put(bytes(span))


class Told(Protocol):
    """Who hears what became of reading."""

    def count(self, source: str, nbytes: int) -> None: ...
    def say(self, words: str) -> None: ...


class ShardReader:
    """Raises CheckpointUnreadable when no copy is good, with what was wrong with each of them."""

    def __init__(self, name: str, copies: Iterator[tuple[str, Callable[[], Copy | None]]], told: Told, *, verify: bool) -> None:
        self._name = name
        self._copies = copies
        self._told = told
        self._verify = verify
        self._copy: Copy | None = None
        self._is_verified = False
        self._faults: list[str] = []
        self._lock = threading.RLock()

    def read(self, use: Callable[[Copy], _T]) -> _T:
        """Has ``use`` try copies until it does not raise OSError or CheckpointUnreadable."""
        with self._lock:
            while True:
                copy = self._copy or self._next()
                try:
                    return use(copy)
                except (OSError, CheckpointUnreadable) as error:
                    self._pass_over(copy.where, error)
                    copy.doubt()

    def fill(self, wants: Sequence[Want]) -> None:
        self.read(lambda copy: self._fill(copy, wants))

    def view(self, region: Region) -> Tensor | None:
        """The region over this node's segment, without a copy; None if it is elsewhere or its bytes are not in one piece."""
        return self.read(lambda copy: self._view(copy, region))

    def verify(self) -> None:
        """Reads all of it once, piece by piece, and compares its digest."""
        self.read(_require_whole)

    def close(self) -> None:
        with self._lock:
            if self._copy is not None:
                self._copy.close()
                self._copy = None

    def _next(self) -> Copy:
        for where, open_copy in self._copies:
            try:
                copy = open_copy()
            except (OSError, EOFError, EverstepError) as error:
                self._pass_over(where, error)
                continue
            if copy is not None:
                self._copy, self._is_verified = copy, False
                return copy
        reasons = "; ".join(self._faults) or "no tier has one"
        message = f"there is no good copy of {self._name}: {reasons}"
        raise CheckpointUnreadable(message)

    def _pass_over(self, where: str, error: Exception) -> None:
        fault = f"{where}: {error}"
        self._faults.append(fault)
        self._told.say(f"a copy of {self._name} is passed over: {fault}")
        self.close()

    def _fill(self, copy: Copy, wants: Sequence[Want]) -> None:
        layout = copy.layout()
        by_item = _by_item(layout, wants, self._name)
        if self._verify and not self._is_verified and _is_little(layout, by_item):
            nbytes = _fill_from_items(copy, by_item)
        elif copy.body is not None:
            nbytes = self._fill_from_memory(copy, copy.body, by_item)
        elif self._verify:
            nbytes = _fill_from_whole(copy, layout, by_item)
        else:
            nbytes = _fill_from_ranges(copy, by_item)
        self._told.count(copy.source, nbytes)

    def _fill_from_memory(self, copy: Copy, body: memoryview, by_item: Sequence[tuple[Item, list[Want]]]) -> int:
        """The checksum is taken on another thread meanwhile: if it is wrong, the next copy overwrites what this one gave."""
        is_open = self._verify and not self._is_verified
        taken = 0
        with ThreadPoolExecutor(1, thread_name_prefix="everstep-verify") if is_open else nullcontext() as thread:
            digest = thread.submit(digest_of, [body]) if thread is not None else None
            for item, wants in by_item:
                for want in wants:
                    start, end = want.span(item)
                    want.take(body[item.start + start : item.start + end])
                    taken += end - start
            if digest is not None:
                copy.require(digest.result())
                self._is_verified = True
        return taken

    def _view(self, copy: Copy, region: Region) -> Tensor | None:
        if not isinstance(copy, LocalCopy):
            return None
        item = _item(copy.layout(), region.key, self._name)
        start, end = region.span(item)
        if end - start != region.into.numel() * region.dtype.itemsize or end == start:
            return None
        if self._verify and not self._is_verified and copy.body is not None:
            copy.require(digest_of([copy.body]))
            self._is_verified = True
        self._told.count(copy.source, end - start)
        return region.over(copy.lease.private_view()[item.start + start : item.start + end])


def _require_whole(copy: Copy) -> None:
    if copy.body is not None:
        copy.require(digest_of([copy.body]))
        return
    piece = new_memory(min(copy.size, _PIECE))
    hashing = Hashing()
    for start in range(0, copy.size, _PIECE):
        part = piece[: min(_PIECE, copy.size - start)]
        copy.read(start, [part])
        hashing.add(part)
    copy.require(hashing.digest)


def _item(layout: Layout, key: Key, shard: str) -> Item:
    item = layout.by_key.get(key)
    if item is None:
        message = f"{shard} has no {key[0]!r} at {key[1]}, which the step's metadata says it has"
        raise CheckpointUnreadable(message)
    return item


def _by_item(layout: Layout, wants: Sequence[Want], shard: str) -> list[tuple[Item, list[Want]]]:
    """The wanted items in the order of their bytes."""
    grouped: defaultdict[Key, list[Want]] = defaultdict(list)
    for want in wants:
        grouped[want.key].append(want)
    found = [(_item(layout, key, shard), some) for key, some in grouped.items()]
    return sorted(found, key=lambda pair: pair[0].start)


def _is_little(layout: Layout, by_item: Sequence[tuple[Item, list[Want]]]) -> bool:
    """Whether only items are wanted that have digests of their own, and not nearly all of the shard."""
    wanted = sum(item.nbytes for item, _ in by_item)
    return wanted < _MOST_OF_IT * layout.nbytes and all(item.digest for item, _ in by_item)


def _fill_from_items(copy: Copy, by_item: Sequence[tuple[Item, list[Want]]]) -> int:
    """Reads whole items and compares each with its own digest. A damaged layout is noticed by that as well."""
    placed: set[Key] = set()
    read: list[tuple[int, memoryview]] = []
    for item, wants in by_item:
        place = wants[0].place(item) if len(wants) == 1 else None
        if copy.body is not None:
            buffer = copy.body[item.start : item.start + item.nbytes]
        elif place is not None and len(place) == item.nbytes:
            buffer = place
            placed.add(item.key)
        else:
            buffer = new_memory(item.nbytes)
        read.append((item.start, buffer))
    if copy.body is None:
        _read_runs(copy, read)
    for (item, wants), (_, buffer) in zip(by_item, read, strict=True):
        if digest_of([buffer]) != item.digest:
            message = f"{item.name!r} does not match its checksum"
            raise CheckpointUnreadable(message)
        if item.key not in placed:
            for want in wants:
                start, end = want.span(item)
                want.take(buffer[start:end])
    return sum(item.nbytes for item, _ in by_item)


def _fill_from_whole(copy: Copy, layout: Layout, by_item: Sequence[tuple[Item, list[Want]]]) -> int:
    """Reads every byte of the shard in one go, as far as possible straight to its place, and compares the digest of them all."""
    wanted = {item.key: wants for item, wants in by_item}
    buffers: list[memoryview] = []
    owned: dict[Key, memoryview] = {}
    at = 0
    for item in sorted(layout.items, key=lambda one: one.start):
        buffers += [memoryview(bytearray(item.start - at))] if item.start > at else []
        wants = wanted.get(item.key, [])
        place = wants[0].place(item) if len(wants) == 1 else None
        if place is None or len(place) != item.nbytes:
            place = owned[item.key] = new_memory(item.nbytes)
        buffers.append(place)
        at = item.start + item.nbytes
    buffers.append(memoryview(bytearray(copy.size - at)))
    copy.require(copy.read_hashed(buffers))
    for item, wants in by_item:
        if item.key in owned:
            for want in wants:
                start, end = want.span(item)
                want.take(owned[item.key][start:end])
    return copy.size


def _fill_from_ranges(copy: Copy, by_item: Sequence[tuple[Item, list[Want]]]) -> int:
    """Reads only what is wanted, and compares nothing."""
    read: list[tuple[int, memoryview]] = []
    after: list[tuple[Want, memoryview]] = []
    for start, end, want, item in sorted(_spans(by_item), key=lambda one: one[:2]):
        place = want.place(item)
        if place is None:
            place = new_memory(end - start)
            after.append((want, place))
        read.append((start, place))
    _read_runs(copy, read)
    for want, span in after:
        want.take(span)
    return sum(len(buffer) for _, buffer in read)


def _read_runs(copy: Copy, wanted: Sequence[tuple[int, memoryview]]) -> None:
    """Fills buffers from these places, in order. Small gaps are read over, as another request would cost more."""
    run: list[memoryview] = []
    begin = at = 0
    for start, buffer in wanted:
        if run and not 0 <= start - at <= _WORTH_READING_OVER:
            copy.read(begin, run)
            run = []
        if not run:
            begin = at = start
        run += [memoryview(bytearray(start - at)), buffer] if start > at else [buffer]
        at = start + len(buffer)
    if run:
        copy.read(begin, run)


def _spans(by_item: Sequence[tuple[Item, list[Want]]]) -> Iterator[tuple[int, int, Want, Item]]:
    """In bytes of the shard."""
    for item, wants in by_item:
        for want in wants:
            start, end = want.span(item)
            yield item.start + start, item.start + end, want, item
