from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from everstep.data import DataOrder, OrderedBatches


def fetched(batches: OrderedBatches, steps: int) -> list[list[int]]:
    return list(itertools.islice(batches, steps))


@given(
    size=st.integers(5, 40),
    global_batch=st.integers(4, 9),
    worlds=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    steps=st.integers(1, 5),
)
def test_however_the_world_changes_all_samples_come_once_and_in_order(
    size: int, global_batch: int, worlds: list[int], steps: int
) -> None:
    """Each world goes on from the integer that the world before has left."""
    seen: list[int] = []
    kept = {"consumed": 0}
    for world_size in worlds:
        ranks = [
            OrderedBatches(size, global_batch=global_batch, rank=rank, world_size=world_size, seed=4) for rank in range(world_size)
        ]
        for one in ranks:
            one.load_state_dict(kept)
        parts = [fetched(one, steps + 2) for one in ranks]  # two more than are trained on, as workers do that run ahead
        for step in range(steps):
            seen += [index for part in parts for index in part[step]]
            ranks[0].committed()
        kept = ranks[0].state_dict()
    assert seen == DataOrder(size, 4).indices(0, len(seen))
    assert kept == {"consumed": len(seen)}


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        return index


def test_a_loader_goes_on_with_the_sample_after_the_last_committed_one() -> None:
    batches = OrderedBatches(30, global_batch=4, seed=9)
    loader = iter(DataLoader(Numbers(), batch_sampler=batches))
    first = [next(loader) for _ in range(5)]
    for _ in range(3):
        batches.committed()
    again = OrderedBatches(30, global_batch=4, seed=9)
    again.load_state_dict(batches.state_dict())
    assert torch.equal(next(iter(DataLoader(Numbers(), batch_sampler=again))), first[3])
