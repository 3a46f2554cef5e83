"""A state, divided over the ranks that hold it: each writes its part of the bytes, nobody needs to ask anybody.

Every rank computes the same division from shapes alone. What is replicated is a row of tensors, each a row of rows (of its first dimension);
rank ``k`` of ``W`` writes the rows that begin in the ``k``-th of ``W`` equal parts of all these bytes. A tensor that is sharded by rows is
written shard by shard: shard ``k`` of ``S`` by one of the ranks ``k``, ``k + S``, …, which take turns from tensor to tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .contents import Chunk, Contents, TensorContent
from .layout import Layout
from .placing import copy_all, kept_views
from .torch_parts import inside, local_of, over, rows_of, shards_of

REST = "everstep.rest"
"""The blob of everything that is no tensor, in rank 0's shard."""
PROGRAM = {"kind": "everstep.State"}


class Held(Protocol):
    """What is saved and loaded: ``everstep.State``."""

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """Name and tensor, in an order that is the same in all ranks. The same list, for as long as an equal one would be returned."""

    def paths(self) -> dict[str, tuple[str | int, ...]]:
        """Under which keys a name lies in nested dictionaries."""

    def fleeting(self) -> set[int]:
        """The ``id`` of tensors that a forward changes: they are copied at once."""

    def pack_rest(self, cursor: dict[str, Any]) -> bytes: ...

    def unpack_rest(self, blob: bytes) -> tuple[list[torch.Tensor], dict[str, Any]]: ...


@dataclass(frozen=True)
class Entry:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    shards: int = 1

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])


@dataclass(frozen=True)
class Part:
    """Rows ``first`` to ``first + rows`` of the tensor with this number."""

    number: int
    entry: Entry
    first: int
    rows: int

    @property
    def offsets(self) -> tuple[int, ...]:
        return (self.first, *(0 for _ in self.entry.shape[1:])) if self.entry.shape else ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.rows, *self.entry.shape[1:]) if self.entry.shape else ()

    @property
    def nbytes(self) -> int:
        return self.rows * self.entry.row_bytes

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.entry.shards > 1:
            return tensor  # all that this rank has of it
        return tensor[self.first : self.first + self.rows] if self.entry.shape else tensor


@dataclass(frozen=True)
class Division:
    """``parts[rank]`` is what that rank writes."""

    entries: tuple[Entry, ...]
    parts: tuple[tuple[Part, ...], ...]

    @property
    def world_size(self) -> int:
        return len(self.parts)

    def layout(self, rank: int) -> Layout:
        """Of the tensors in a rank's shard."""
        return Layout.of((part.entry.name, part.offsets, part.nbytes) for part in self.parts[rank])

    def contents(self, blobs: Mapping[str, int], paths: Mapping[str, tuple[str | int, ...]]) -> Contents:
        """The metadata of the whole step."""
        chunks: dict[str, list[Chunk]] = {entry.name: [] for entry in self.entries}
        for rank, parts in enumerate(self.parts):
            for part in parts:
                chunks[part.entry.name].append(Chunk(part.offsets, part.sizes, rank))
        tensors = {
            entry.name: TensorContent(str(entry.dtype).removeprefix("torch."), entry.shape, tuple(chunks[entry.name]))
            for entry in self.entries
        }
        return Contents(self.world_size, tensors, blobs, paths, PROGRAM)


def entries_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[Entry, ...]:
    return tuple(Entry(name, tensor.dtype, tuple(tensor.shape), shards_of(tensor)) for name, tensor in tensors)


@functools.lru_cache(maxsize=4)
def divide(entries: tuple[Entry, ...], world_size: int) -> Division:
    """Parts of equal bytes, to within a row. Pure: equal in every rank that has tensors of these names, types and shapes."""
    total = sum(entry.rows * entry.row_bytes for entry in entries if entry.shards == 1)
    parts: list[list[Part]] = [[] for _ in range(world_size)]
    before = 0
    for number, entry in enumerate(entries):
        if entry.shards > 1:
            for rank, first, end in _shards(entry, number, world_size):
                parts[rank].append(Part(number, entry, first, end - first))
            continue
        for rank, first, end in _cuts(entry, before, total, world_size):
            parts[rank].append(Part(number, entry, first, end - first))
        before += entry.rows * entry.row_bytes
    return Division(entries, tuple(tuple(mine) for mine in parts))


def _cuts(entry: Entry, before: int, total: int, world_size: int) -> Iterator[tuple[int, int, int]]:
    """(rank, first row, end) of a tensor behind ``before`` of ``total`` bytes. What has no bytes is the first rank's."""
    nbytes = entry.rows * entry.row_bytes
    if nbytes == 0:
        yield 0, 0, entry.rows
        return
    for rank in range(before * world_size // total, min(world_size, (before + nbytes) * world_size // total + 1)):
        first = _row_of(rank, entry, before, total, world_size)
        end = entry.rows if rank == world_size - 1 else _row_of(rank + 1, entry, before, total, world_size)
        if end > first:
            yield rank, first, end


def _shards(entry: Entry, number: int, world_size: int) -> Iterator[tuple[int, int, int]]:
    """As ``_cuts``, of a tensor that is sharded by rows."""
    replica = number % (world_size // entry.shards)
    for index in range(entry.shards):
        first, end = rows_of(entry.rows, entry.shards, index)
        if end > first or (index == 0 and entry.rows == 0):
            yield replica * entry.shards + index, first, end


def _row_of(rank: int, entry: Entry, before: int, total: int, world_size: int) -> int:
    """The first row that begins in the part of ``rank`` or behind it."""
    row = -((before * world_size - rank * total) // (entry.row_bytes * world_size))
    return min(max(row, 0), entry.rows)


@dataclass(frozen=True)
class Captured:
    """What one rank writes in one save. The tensors are the living ones, except those that a forward changes."""

    layout: Layout
    tensors: tuple[torch.Tensor, ...]
    blobs: tuple[bytes, ...]
    plan: object
    """The same for all that one ``Plan`` has captured, which lies in the same places each time. Whoever keeps it keeps no tensor alive."""

    def write(self, body: memoryview, views: dict[Any, Any] | None = None) -> None:
        """Fills a shard of ``layout.size`` bytes. Every byte is written: what a segment held before would change its digest.

        ``views`` are what earlier saves have laid over the same memory: laying thousands anew costs more than the copy.
        """
        with torch.no_grad():
            copy_all(self._views_over(body, {} if views is None else views), list(self.tensors))
        for blob, item in zip(self.blobs, self.layout.items[len(self.tensors) :], strict=True):
            body[item.start : item.start + item.nbytes] = blob
        for start, end in self.layout.gaps():
            body[start:end] = bytes(end - start)
        body[self.layout.nbytes : self.layout.size] = self.layout.tail

    def _views_over(self, body: memoryview, views: dict[Any, Any]) -> list[torch.Tensor]:
        def laid() -> list[torch.Tensor]:
            return [
                over(body, item.start, one.shape, one.dtype) for one, item in zip(self.tensors, self.layout.items, strict=False)
            ]

        return kept_views(views, self.plan, laid)


class Plan:
    """How one rank's part of a state is captured, at every save for as long as the state's tensors are the same."""

    def __init__(self, items: list[tuple[str, torch.Tensor]], division: Division, rank: int, fleeting: set[int]) -> None:
        self._items = items
        self.division = division
        self._rank = rank
        self._parts = tuple((items[part.number][1], part) for part in division.parts[rank])
        self._cut = tuple(place for place, (tensor, part) in enumerate(self._parts) if part.rows != part.entry.rows)
        self._fleeting = tuple(place for place, (tensor, _) in enumerate(self._parts) if id(tensor) in fleeting)
        self._layout = division.layout(rank)
        self._name = object()

    def is_for(self, items: list[tuple[str, torch.Tensor]], rank: int, world_size: int) -> bool:
        """``items`` of a state are the same object for as long as they are equal."""
        return self._items is items and self._rank == rank and self.division.world_size == world_size

    def capture(self, blobs: Mapping[str, bytes]) -> Captured:
        """What is to be written, at a moment at which the state is that of a committed step."""
        mine = [inside(tensor) for tensor, _ in self._parts]
        with torch.no_grad():
            for place in self._cut:
                tensor, part = self._parts[place]
                mine[place] = part.of(local_of(tensor))
            for place in self._fleeting:
                mine[place] = mine[place].detach().clone()
        layout = self._layout.extended((name, None, len(blob)) for name, blob in blobs.items())
        return Captured(layout, tuple(mine), tuple(blobs.values()), self._name)


def capture(state: Held, division: Division, rank: int, blobs: Mapping[str, bytes]) -> Captured:
    """Of a state that is captured once."""
    return Plan(state.items(), division, rank, state.fleeting()).capture(blobs)
