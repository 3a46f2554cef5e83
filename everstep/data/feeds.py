"""What ``run.steps`` takes as data, and how a rank's part of each global batch is got from it.

* a map-style dataset, or a sequence: its order is ours, a function of (seed, consumed);
* a stream, anything that can be iterated over again and again: its order is its own, a rank's part goes by position;
* a factory ``loader(start, rank, world_size)``: what comes from sample ``start`` on is the user's to say, batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, default_collate

from everstep.elastic import share_of

from .batches import Batches, Collate, Samples

Factory = Callable[[int, int, int], Iterator[Any]]
Position = dict[str, Any]
_MARKS = 2
"""Ends of batches that a stream remembers besides the newest: a step may be trained again, or be gone on from by another rank."""


@dataclass(frozen=True)
class Part:
    """A rank's part of a global batch.

    ``position`` is where a stream stands after the whole batch; None where the number of consumed samples says everything.
    """

    batch: Any
    position: Position | None = None


class Feed(Protocol):
    def at(self, consumed: int, rank: int, world_size: int) -> Part:
        """The part of ``rank`` in the global batch that begins after ``consumed`` samples."""


class Beginnings:
    """The states in which stateful streams were before anything was read from them: a rehearsal reads too. One per process."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, stream: Any) -> Any:
        """None for a stream without a state."""
        if not hasattr(stream, "state_dict"):
            return None
        known = self._known.get(id(stream))
        if known is None:
            known = self._known[id(stream)] = (stream, stream.state_dict())
        return known[1]


class Kind(Enum):
    MAP = auto()
    STREAM = auto()
    FACTORY = auto()


def kind_of(data: Any) -> Kind:
    """Raises TypeError for what is none of the three."""
    if isinstance(data, DataLoader) and not _yields_samples(data):
        message = "run.steps makes the batches: give it the DataLoader's dataset, or a factory loader(start, rank, world_size)"
        raise TypeError(message)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return Kind.MAP
    if hasattr(data, "__next__"):
        message = "an iterator can be read only once: give run.steps what it was made from, so that each process can begin again"
        raise TypeError(message)
    if hasattr(data, "__iter__"):
        return Kind.STREAM
    if callable(data):
        return Kind.FACTORY
    message = f"run.steps takes a dataset, an iterable or a factory loader(start, rank, world_size), not {type(data).__name__}"
    raise TypeError(message)


def feed_of(
    data: Any, *, global_batch: int, seed: int, collate: Collate | None, position: Position | None, beginnings: Beginnings
) -> Feed:
    """``position`` is where a stream stands at the committed step."""
    match kind_of(data):
        case Kind.MAP:
            return _Mapped(data, global_batch=global_batch, seed=seed, collate=collate)
        case Kind.STREAM:
            return _Stream(data, global_batch, collate or default_collate, position, beginnings.of(data))
        case Kind.FACTORY:
            return _Made(data, global_batch)


def _yields_samples(loader: DataLoader[Any]) -> bool:
    return loader.batch_size is None and loader.batch_sampler is None


def _opened(made: Callable[[], Any]) -> Iterator[Any]:
    """Torch's loader draws a number when it is opened. Who opens one in the middle of training must not draw others than the rest afterwards."""
    with torch.random.fork_rng(devices=[]):
        return iter(made())


class _Mapped:
    def __init__(self, samples: Samples, *, global_batch: int, seed: int, collate: Collate | None) -> None:
        self._batches = Batches(samples, global_batch=global_batch, seed=seed, collate=collate)

    def at(self, consumed: int, rank: int, world_size: int) -> Part:
        return Part(self._batches.at(consumed, rank, world_size))


class _Stream:
    """Every rank reads the whole stream and keeps its part. When the stream ends its next epoch begins, in the middle of a batch if need be.

    Of the stream's own: ``set_epoch(epoch)`` is called before each epoch, ``state_dict`` and ``load_state_dict`` spare whoever joins the reading
    of what was consumed, and so does ``skip(n)``, which returns the stream without its first ``n`` samples.
    """

    def __init__(self, stream: Any, global_batch: int, collate: Collate, position: Position | None, beginning: Any) -> None:
        self._stream = stream
        self._global_batch = global_batch
        self._collate = collate
        self._beginning = beginning
        self._marks = [{"consumed": 0, "epoch": 0, "offset": 0, "state": beginning}]
        """Where it is known how to go on from: the beginning, what was committed when it was opened, and the ends of the last batches."""
        if position is not None:
            self._marks.append(position)
        self._next = -1
        self._epoch = self._offset = 0
        self._reader: Iterator[Any] = iter(())

    def at(self, consumed: int, rank: int, world_size: int) -> Part:
        if consumed != self._next:
            self._seek(consumed)
        share = share_of(self._global_batch, rank, world_size)
        own = []
        for place in range(self._global_batch):
            sample = self._read()
            if share.start <= place < share.start + share.size:
                own.append(sample)
        self._next = consumed + self._global_batch
        position = self._position()
        self._marks = [self._marks[0], *self._marks[-_MARKS:], position]
        return Part(self._collate(own), position)

    def _seek(self, consumed: int) -> None:
        known = max((mark for mark in self._marks if mark["consumed"] <= consumed), key=lambda mark: mark["consumed"])
        self._open(known["epoch"], known["offset"], known["state"])
        for _ in range(consumed - known["consumed"]):
            self._read()
        self._next = consumed

    def _open(self, epoch: int, offset: int, state: Any) -> None:
        """In an epoch, after its first ``offset`` samples."""
        self._begin_epoch(epoch)
        if state is not None:
            self._stream.load_state_dict(state)
        elif offset and hasattr(self._stream, "skip"):
            self._reader = _opened(lambda: self._stream.skip(offset))
        else:
            self._reader = _opened(lambda: self._stream)
            for _ in range(offset):
                next(self._reader)
        if state is not None:
            self._reader = _opened(lambda: self._stream)
        self._offset = offset

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)

    def _read(self) -> Any:
        try:
            sample = next(self._reader)
        except StopIteration:
            if self._offset == 0:
                message = "the stream has ended before its first sample"
                raise ValueError(message) from None
            self._begin_epoch(self._epoch + 1)
            self._reader, self._offset = _opened(lambda: self._stream), 0
            return self._read()
        self._offset += 1
        return sample

    def _position(self) -> Position:
        state = self._stream.state_dict() if self._beginning is not None else None
        return {"consumed": self._next, "epoch": self._epoch, "offset": self._offset, "state": state}


class _Made:
    """Made anew whenever the place, the rank or the world is another than where the loader stands."""

    def __init__(self, factory: Factory, global_batch: int) -> None:
        self._factory = factory
        self._global_batch = global_batch
        self._stands: tuple[int, int, int] | None = None
        self._loader: Iterator[Any] = iter(())

    def at(self, consumed: int, rank: int, world_size: int) -> Part:
        if self._stands != (consumed, rank, world_size):
            self._loader = _opened(lambda: self._factory(consumed, rank, world_size))
        try:
            batch = next(self._loader)
        except StopIteration:
            message = f"the loader made for sample {consumed} on has ended: it is to go on without end, from epoch to epoch"
            raise ValueError(message) from None
        self._stands = (consumed + self._global_batch, rank, world_size)
        return Part(batch)
