"""The batches of one entry into the training function: read as they are needed, or prepared by threads while the step before trains.

The order is known in advance, so nothing has to be asked for: what comes next follows from (consumed, rank, world size). A change of any of them
drops what was prepared. What is prepared is kept in the node's shared memory too, where a successor finds it.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from everstep.elastic import share_of
from everstep.errors import UnsteadyData

from .batches import Collate
from .feeds import Beginnings, Kind, Part, Position, feed_of, kind_of
from .shelf import Shelf, fingerprint, packed

_LEAST_AHEAD = 2
_Key = tuple[int, int, int]


class Origin(StrEnum):
    """Where a batch came from."""

    READ = "read"
    """From the data, while the step waited."""
    AHEAD = "ahead"
    """From the data, by a thread of this process, beside the step before."""
    SHARED_MEMORY = "shared-memory"
    """Prepared by a process that stood here before."""


@dataclass(frozen=True)
class Wish:
    """What ``run.steps`` was asked for. ``workers`` threads read ahead; 0: none."""

    data: Any
    global_batch: int
    seed: int
    collate: Collate | None = None
    workers: int = 0

    def check(self) -> None:
        """Raises TypeError for data that cannot be read, ValueError for workers that cannot be had."""
        kind = kind_of(self.data)
        if self.workers < 0 or (self.workers and kind is Kind.FACTORY):
            message = f"workers={self.workers}: from 0, and a factory's loader has workers of its own"
            raise ValueError(message)


class Supply:
    """One a loop over ``run.steps``.

    ``position`` is where a stream stands at the committed step, ``end`` the number of samples after which nothing is needed any more, ``folder`` where
    prepared batches are kept, None for nowhere.
    """

    def __init__(self, wish: Wish, *, position: Position | None, beginnings: Beginnings, end: int, folder: Path | None) -> None:
        self.origin = Origin.READ
        self._global_batch = wish.global_batch
        self._end = end
        self._feed = feed_of(
            wish.data,
            global_batch=wish.global_batch,
            seed=wish.seed,
            collate=wish.collate,
            position=position,
            beginnings=beginnings,
        )
        # A stream is read by one thread, in order, and whoever comes next reads it too: there is nothing to keep of it.
        is_map = kind_of(wish.data) is Kind.MAP
        self._depth = max(_LEAST_AHEAD, wish.workers) if wish.workers else 0
        threads = wish.workers if is_map else 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="everstep-data") if wish.workers else None
        self._shelf = _shelf(wish, folder) if is_map and wish.workers and folder is not None else None
        self._waiting: dict[_Key, Future[tuple[Part, Origin]]] = {}
        self._is_first = True

    def at(self, consumed: int, rank: int, world_size: int) -> Part:
        """The part of ``rank`` in the global batch that begins after ``consumed`` samples.

        Raises:
            UnsteadyData: there are workers, and reading draws from generators that the training thread draws from too.
        """
        key = (consumed, rank, world_size)
        if self._pool is None:
            part, self.origin = self._get(key)
            return part
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            part, origin = waiting.result()
            self.origin = Origin.AHEAD if origin is Origin.READ else origin
        else:
            self._drop()
            part, self.origin = self._first(key) if self._is_first else self._pool.submit(self._get, key).result()
        if self._shelf is not None:
            self._shelf.clear_before(consumed)
        self._prepare(self._pool, key)
        return part

    def close(self) -> None:
        """Waits for what is being read: whoever comes next reads the same data, and a stream that two threads read skips samples or repeats them."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _prepare(self, pool: ThreadPoolExecutor, key: _Key) -> None:
        consumed, rank, world_size = key
        for number in range(1, self._depth + 1):
            following = (consumed + number * self._global_batch, rank, world_size)
            if following[0] < self._end and following not in self._waiting:
                self._waiting[following] = pool.submit(self._get, following)

    def _drop(self) -> None:
        dropped, self._waiting = self._waiting, {}
        for future in dropped.values():
            future.cancel()

    def _first(self, key: _Key) -> tuple[Part, Origin]:
        """On the training thread, and watched."""
        self._is_first = False
        before = _generators()
        got = self._get(key)
        if _generators() != before:
            raise UnsteadyData
        return got

    def _get(self, key: _Key) -> tuple[Part, Origin]:
        consumed, rank, world_size = key
        if self._shelf is None:
            return self._feed.at(consumed, rank, world_size), Origin.READ
        share = share_of(self._global_batch, rank, world_size)
        kept = self._shelf.take(consumed + share.start, share.size)
        if kept is not None:
            return Part(kept[0]), Origin.SHARED_MEMORY
        part = self._feed.at(consumed, rank, world_size)
        self._shelf.put(consumed + share.start, share.size, part.batch)
        return part, Origin.READ


def _shelf(wish: Wish, folder: Path) -> Shelf | None:
    """None if the batches cannot be kept. Data are told apart by their first sample as it comes out of ``collate``, besides what they say of themselves."""
    before = _generators()
    sample = packed((wish.collate or default_collate)([wish.data[0]]))
    if _generators() != before:
        raise UnsteadyData
    if sample is None:
        return None
    own = getattr(wish.data, "_fingerprint", None)  # of Hugging Face's datasets
    return Shelf(folder, fingerprint(type(wish.data).__qualname__, len(wish.data), wish.seed, own, sample))


def _generators() -> list[Any]:
    numpy = sys.modules.get("numpy")
    theirs = numpy.random.get_state()[1].tolist() if numpy is not None else None
    return [torch.get_rng_state().tolist(), random.getstate(), theirs]
