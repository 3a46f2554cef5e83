"""From indices to the batch that user code sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data import default_collate

from everstep.elastic import share_of

from .order import DataOrder

Collate = Callable[[list[Any]], Any]


class Samples(Protocol):
    """A map-style dataset, or any sequence."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Batches:
    """A rank's part of each global batch of a run."""

    def __init__(self, samples: Samples, *, global_batch: int, seed: int, collate: Collate | None) -> None:
        self._samples = samples
        self._global_batch = global_batch
        self._order = DataOrder(len(samples), seed)
        self._collate = collate or default_collate
        self._fetch_many: Callable[[list[int]], list[Any]] | None = getattr(samples, "__getitems__", None)

    def at(self, consumed: int, rank: int, world_size: int) -> Any:
        """The part of ``rank`` in the global batch that begins after ``consumed`` samples."""
        share = share_of(self._global_batch, rank, world_size)
        indices = self._order.indices(consumed + share.start, share.size)
        if self._fetch_many is not None:
            return self._collate(self._fetch_many(indices))
        return self._collate([self._samples[index] for index in indices])
