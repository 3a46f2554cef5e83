from __future__ import annotations

import hashlib
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.data import DataOrder
from everstep.data.batches import Batches
from everstep.elastic import share_of

sizes = st.integers(1, 200)
seeds = st.integers(0, 2**63)


@given(size=sizes, seed=seeds, cuts=st.lists(st.integers(1, 37), max_size=30))
def test_however_consumption_is_cut_the_order_is_the_same(size: int, seed: int, cuts: list[int]) -> None:
    pieces, consumed = [], 0
    for cut in cuts:
        pieces += DataOrder(size, seed).indices(consumed, cut)
        consumed += cut
    assert pieces == DataOrder(size, seed).indices(0, consumed)


@given(size=st.integers(1, 300) | st.integers(1, 1 << 62), seed=seeds, consumed=st.integers(0, 1 << 40), count=st.integers(0, 12))
def test_an_order_is_the_same_in_plain_integers(size: int, seed: int, consumed: int, count: int) -> None:
    """What was trained in the order of an older release goes on in it."""
    expected = [in_plain_integers(size, seed, *divmod(number, size)) for number in range(consumed, consumed + count)]
    assert DataOrder(size, seed).indices(consumed, count) == expected


def in_plain_integers(size: int, seed: int, epoch: int, place: int) -> int:
    words = [hashlib.sha256(f"{seed}:{epoch}:{number}".encode()).digest()[:8] for number in range(8)]
    keys = [int.from_bytes(word, "little") for word in words]
    bits = max(1, (size - 1).bit_length())
    low_bits = bits - bits // 2

    def mixed(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % (1 << 64)
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % (1 << 64)
        return word ^ (word >> 31)

    while True:
        high, low = place >> low_bits, place % (1 << low_bits)
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            high ^= mixed(low ^ first) % (1 << (bits // 2))
            low ^= mixed(high ^ second) % (1 << low_bits)
        place = (high << low_bits) | low
        if place < size:
            return place


@given(size=sizes, seed=seeds, epochs=st.integers(1, 3))
def test_every_epoch_sees_every_sample_exactly_once(size: int, seed: int, epochs: int) -> None:
    seen = Counter(DataOrder(size, seed).indices(0, size * epochs))
    assert seen == Counter(dict.fromkeys(range(size), epochs))


@given(
    size=sizes,
    seed=seeds,
    batch=st.integers(8, 40),
    worlds=st.lists(st.integers(1, 8), min_size=1, max_size=12),
)
def test_over_any_history_of_memberships_no_sample_is_seen_twice_or_skipped(
    size: int, seed: int, batch: int, worlds: list[int]
) -> None:
    samples = list(range(size))
    seen: list[int] = []
    batches = Batches(samples, global_batch=batch, seed=seed, collate=list)
    for step, world in enumerate(worlds):
        for rank in range(world):
            seen += batches.at(step * batch, rank, world)
    assert seen == DataOrder(size, seed).indices(0, batch * len(worlds))


@given(batch=st.integers(1, 500), world=st.integers(1, 64))
def test_shares_tile_the_batch_and_weigh_to_its_mean(batch: int, world: int) -> None:
    if batch < world:
        with pytest.raises(ValueError, match="fewer samples"):
            share_of(batch, 0, world)
        return
    shares = [share_of(batch, rank, world) for rank in range(world)]
    assert [share.start for share in shares] == [sum(other.size for other in shares[:rank]) for rank in range(world)]
    assert sum(share.size for share in shares) == batch
    assert max(share.size for share in shares) - min(share.size for share in shares) <= 1
    # a sample's weight in the mean over ranks, each rank's mean loss divided by its accumulation, is 1 / batch
    assert all(1 / (share.size * share.accumulation * world) == pytest.approx(1 / batch) for share in shares)
    if batch % world == 0:
        assert all(share.accumulation == 1.0 for share in shares)


def test_the_order_of_a_seed_is_fixed_for_ever() -> None:
    order = [6, 9, 1, 2, 5, 7, 8, 0, 4, 3, 0, 2, 5, 1, 7, 6, 8, 4, 9, 3]
    assert DataOrder(10, 1).indices(0, 20) == order


def test_orders_of_different_seeds_and_epochs_differ() -> None:
    assert DataOrder(100, 1).indices(0, 100) != DataOrder(100, 2).indices(0, 100)
    assert DataOrder(100, 1).indices(0, 100) != DataOrder(100, 1).indices(100, 100)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        DataOrder(0, 1)


@settings(max_examples=20)
@given(rank=st.integers(0, 3))
def test_a_batch_is_collated_as_by_torch(rank: int) -> None:
    samples = [(torch.full((3,), float(number)), number) for number in range(32)]
    tensors, numbers = Batches(samples, global_batch=16, seed=5, collate=None).at(16, rank, 4)
    assert tensors.shape == (4, 3)
    assert tensors[:, 0].tolist() == numbers.tolist() == DataOrder(32, 5).indices(16 + 4 * rank, 4)
