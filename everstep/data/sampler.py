"""The data order for scripts that have a DataLoader of their own, and no ``run.steps``: its whole state is one integer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everstep.elastic import share_of

from .order import DataOrder


class OrderedBatches:
    """A batch sampler: yields this rank's part of each global batch, as indices, from ``consumed`` on and without end.

    ``DataLoader(dataset, batch_sampler=batches)``; it spans epochs. A DataLoader's workers run ahead, so what was fetched is not what was trained on:
    ``committed`` is to be called after each optimizer step. ``state_dict`` holds the samples consumed by all ranks together, so that the world
    size may be another one when training goes on: no sample is seen twice or left out.
    """

    def __init__(self, size: int, *, global_batch: int, rank: int = 0, world_size: int = 1, seed: int = 0) -> None:
        self.consumed = 0
        self.global_batch = global_batch
        self._order = DataOrder(size, seed)
        self._share = share_of(global_batch, rank, world_size)

    def __iter__(self) -> Iterator[list[int]]:
        first = self.consumed
        while True:
            yield self._order.indices(first + self._share.start, self._share.size)
            first += self.global_batch

    def committed(self) -> None:
        """One more global batch is part of the state."""
        self.consumed += self.global_batch

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Before the DataLoader is iterated over: what it has fetched already stays as it is."""
        self.consumed = int(state_dict["consumed"])
