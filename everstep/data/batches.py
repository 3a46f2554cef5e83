"""From indices to the batch that user code sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data import default_collate

from everstep.elastic import Share, share_of

from .order import DataOrder

Collate = Callable[[list[Any]], Any]


class Samples(Protocol):
    """A map-style dataset, or any sequence."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


_AHEAD = 1024
"""So many samples' places are worked out at once."""


class Batches:
    """A rank's part of each global batch of a run."""

    def __init__(self, samples: Samples, *, global_batch: int, seed: int, collate: Collate | None) -> None:
        self._samples = samples
        self._global_batch = global_batch
        self._order = DataOrder(len(samples), seed)
        self._ahead: dict[tuple[int, Share], list[int]] = {}
        self._collate = collate or default_collate
        self._fetch_many: Callable[[list[int]], list[Any]] | None = getattr(samples, "__getitems__", None)

    def at(self, consumed: int, rank: int, world_size: int) -> Any:
        """The part of ``rank`` in the global batch that begins after ``consumed`` samples."""
        share = share_of(self._global_batch, rank, world_size)
        indices = self._indices(consumed, share)
        if self._fetch_many is not None:
            return self._collate(self._fetch_many(indices))
        return self._collate([self._samples[index] for index in indices])

    def _indices(self, consumed: int, share: Share) -> list[int]:
        """Those of the next batches are worked out along with them. Called by several threads at once: each at worst does it again."""
        found = self._ahead.get((consumed, share))
        if found is None:
            rows = max(1, _AHEAD // max(1, share.size))
            told = self._order.rows(consumed + share.start, share.size, apart=self._global_batch, rows=rows)
            self._ahead = {(consumed + number * self._global_batch, share): row for number, row in enumerate(told)}
            found = told[0]
        return found
