"""What run.steps reads: whatever becomes of the world, each global batch is the same, and its parts tile it."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from everstep.data import DataOrder, OrderedBatches
from everstep.data.feeds import Beginnings, Position
from everstep.data.supply import Origin, Supply, Wish
from everstep.errors import UnsteadyData


class Plain:
    """A stream of numbers without any state: the epoch is in the number."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.epoch = 0
        self.read = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for number in range(self.size):
            self.read += 1
            yield self.epoch * self.size + number


class Skipping(Plain):
    """One that knows how to leave samples out, as Hugging Face's do."""

    def skip(self, count: int) -> Iterator[int]:
        return iter(range(self.epoch * self.size + count, (self.epoch + 1) * self.size))


class Stateful(Plain):
    """One that says where it stands, and can be told."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._at = 0
        self._starts_at = 0

    def __iter__(self) -> Iterator[int]:
        self._at, self._starts_at = self._starts_at, 0
        while self._at < self.size:
            self._at += 1
            self.read += 1
            yield self.epoch * self.size + self._at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._starts_at = state["at"]


class Numbers(IterableDataset[int]):
    """A stream behind torch's loader."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


def loader(size: int, global_batch: int, seed: int) -> Any:
    """A factory around torch's DataLoader, as a user would write it."""

    def made(start: int, rank: int, world_size: int) -> Iterator[list[int]]:
        batches = OrderedBatches(size, global_batch=global_batch, rank=rank, world_size=world_size, seed=seed)
        batches.load_state_dict({"consumed": start})
        return iter(DataLoader(range(size), batch_sampler=batches, collate_fn=list))

    return made


STREAMS = {"plain": Plain, "skipping": Skipping, "stateful": Stateful}
KINDS = ("map", "factory", *STREAMS)


def data_of(kind: str, size: int, batch: int, seed: int) -> Any:
    if kind == "map":
        return list(range(size))
    return loader(size, batch, seed) if kind == "factory" else STREAMS[kind](size)


def expected(kind: str, size: int, seed: int, count: int) -> list[int]:
    return DataOrder(size, seed).indices(0, count) if kind in {"map", "factory"} else list(range(count))


class Process:
    """A rank: data of its own, and what it has taken over from somebody who held the state."""

    def __init__(self, data: Any, batch: int, seed: int, workers: int, folder: Path | None) -> None:
        self._wish = Wish(data, batch, seed, collate=list, workers=workers)
        self._beginnings = Beginnings()
        self._folder = folder
        self.position: Position | None = None
        self.supply: Supply | None = None
        self.enter()

    def enter(self) -> None:
        """The training function is entered, once more."""
        self.leave()
        self.supply = Supply(self._wish, position=self.position, beginnings=self._beginnings, end=10_000, folder=self._folder)

    def leave(self) -> None:
        if self.supply is not None:
            self.supply.close()


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(3, 23),
    batch=st.integers(4, 9),
    seed=st.integers(0, 1000),
    workers=st.sampled_from((0, 0, 2)),
    history=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=5),
    chance=st.randoms(use_true_random=False),
)
def test_over_any_history_of_sizes_and_undone_steps_every_sample_comes_once(
    kind: str, size: int, batch: int, seed: int, workers: int, history: list[tuple[int, int, bool]], chance: random.Random
) -> None:
    """A world of each size trains some steps; then a step may be begun and left, as when somebody dies in it. New ranks take over, old ones go."""
    workers = 0 if kind == "factory" else workers
    ranks: list[Process] = []
    seen: list[int] = []
    consumed = 0
    for world_size, steps, is_cut in history:
        position = ranks[0].position if ranks else None
        while len(ranks) > world_size:
            ranks.pop(chance.randrange(len(ranks))).leave()
        while len(ranks) < world_size:
            ranks.append(Process(data_of(kind, size, batch, seed), batch, seed, workers, None))
        for one in ranks:
            one.position = position
            one.enter()
        for number in range(steps + is_cut):
            parts = [one.supply.at(consumed, rank, world_size) for rank, one in enumerate(ranks) if one.supply]
            if number == steps:
                break  # read, and not committed
            for one, part in zip(ranks, parts, strict=True):
                one.position = part.position
                seen += part.batch
            consumed += batch
    for one in ranks:
        one.leave()
    assert seen == expected(kind, size, seed, consumed)
    assert max(Counter(seen[:size]).values()) == 1


def test_whoever_joins_a_stream_with_a_state_reads_nothing_of_what_was_consumed() -> None:
    first = Process(Stateful(1000), 10, 0, 0, None)
    assert first.supply is not None
    for step in range(50):
        first.position = first.supply.at(step * 10, 0, 1).position
    stream = Stateful(1000)
    other = Process(stream, 10, 0, 0, None)
    other.position = first.position
    other.enter()
    assert other.supply is not None
    assert other.supply.at(500, 0, 1).batch == list(range(500, 510))
    assert stream.read == 10


@pytest.mark.parametrize("data", [loader(100, 10, 0), DataLoader(Numbers(100), batch_size=None)], ids=["factory", "stream"])
def test_a_loader_that_is_opened_in_the_middle_of_training_draws_no_random_number(data: Any) -> None:
    one = Process(data, 10, 0, 0, None)
    assert one.supply is not None
    torch.manual_seed(7)
    one.supply.at(50, 0, 1)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    one.supply.at(60, 0, 1)
    assert torch.rand(1) == drawn


@pytest.mark.parametrize("kind", ["stateful", "skipping"])
def test_a_batch_that_is_read_again_or_gone_on_from_is_not_sought_from_the_beginning(kind: str) -> None:
    stream = STREAMS[kind](1000)
    one = Process(stream, 10, 0, 0, None)
    assert one.supply is not None
    for step in range(50):
        one.supply.at(step * 10, 0, 2)
    before = stream.read
    assert one.supply.at(490, 1, 2).batch == list(range(495, 500)), "the last one again, another part of it"
    assert one.supply.at(510, 0, 2).batch == list(range(510, 515)), "the one after the next"
    assert stream.read - before <= 40


def test_what_a_dead_process_has_prepared_its_successor_finds_in_shared_memory(tmp_path: Path) -> None:
    samples = [(torch.full((3,), float(number)), number) for number in range(40)]
    wish = Wish(samples, 8, 5, workers=2)

    def supply() -> Supply:
        return Supply(wish, position=None, beginnings=Beginnings(), end=400, folder=tmp_path)

    dead = supply()
    before = [dead.at(step * 8, 1, 2).batch for step in range(3)]
    for future in list(dead._waiting.values()):
        future.result()
    dead.close()
    successor = supply()
    tensors, numbers = successor.at(24, 1, 2).batch
    assert successor.origin is Origin.SHARED_MEMORY
    assert numbers.tolist() == DataOrder(40, 5).indices(24 + 4, 4)
    assert tensors[:, 0].tolist() == numbers.tolist()
    assert successor.at(32, 1, 2).batch[1].tolist() == DataOrder(40, 5).indices(32 + 4, 4)
    successor.close()
    assert len(before) == 3
    assert all(int(path.stem.split("-")[1]) >= 28 for path in tmp_path.glob("*.batch")), "what has been trained on is taken away"


def test_batches_of_other_data_or_another_order_are_not_mistaken_for_ours(tmp_path: Path) -> None:
    def first(samples: list[int], seed: int) -> list[int]:
        supply = Supply(Wish(samples, 4, seed, workers=1), position=None, beginnings=Beginnings(), end=8, folder=tmp_path)
        part = supply.at(0, 0, 1)
        assert supply.origin is Origin.READ
        supply.close()
        return part.batch.tolist()

    assert sorted(first(list(range(4)), 1)) == [0, 1, 2, 3]
    assert sorted(first(list(range(10, 14)), 1)) == [10, 11, 12, 13]
    assert first(list(range(4)), 1 << 40) == DataOrder(4, 1 << 40).indices(0, 4)


@pytest.mark.parametrize("draw", [lambda: torch.rand(1).item(), random.random])
def test_data_that_draw_random_numbers_are_refused_with_workers_and_welcome_without(draw: Any) -> None:
    class Augmented:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> float:
            return index + draw()

    def read(workers: int) -> None:
        supply = Supply(Wish(Augmented(), 2, 0, workers=workers), position=None, beginnings=Beginnings(), end=10, folder=None)
        try:
            supply.at(0, 0, 1)
        finally:
            supply.close()

    read(0)
    with pytest.raises(UnsteadyData, match="seeded by the sample's index"):
        read(1)


def test_an_error_of_the_data_comes_out_where_the_batch_is_asked_for() -> None:
    class Torn:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> int:
            if index == DataOrder(12, 0).indices(9, 1)[0]:
                message = "sample 9 is torn"
                raise OSError(message)
            return index

    supply = Supply(Wish(Torn(), 4, 0, workers=2), position=None, beginnings=Beginnings(), end=12, folder=None)
    supply.at(0, 0, 1)
    supply.at(4, 0, 1)
    with pytest.raises(OSError, match="sample 9 is torn"):
        supply.at(8, 0, 1)
    supply.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (DataLoader([1, 2, 3], batch_size=2), "the DataLoader's dataset"),
        (iter([1, 2]), "read only once"),
        (7, "not int"),
    ],
)
def test_what_cannot_be_read_again_from_the_beginning_is_refused_with_the_remedy(data: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Wish(data, 2, 0).check()


def test_workers_for_a_factory_are_refused_because_it_has_its_own() -> None:
    with pytest.raises(ValueError, match="workers of its own"):
        Wish(loader(4, 2, 0), 2, 0, workers=1).check()


def test_a_loader_that_ends_is_an_error_in_words() -> None:
    supply = Supply(Wish(lambda *_: iter([1]), 2, 0), position=None, beginnings=Beginnings(), end=8, folder=None)
    assert supply.at(0, 0, 1).batch == 1
    with pytest.raises(ValueError, match="sample 2 on has ended"):
        supply.at(2, 0, 1)
    empty = Supply(Wish(Plain(0), 2, 0), position=None, beginnings=Beginnings(), end=8, folder=None)
    with pytest.raises(ValueError, match="before its first sample"):
        empty.at(0, 0, 1)


def test_batches_of_a_dataset_that_fetches_many_at_once_are_fetched_so() -> None:
    class Many:
        asked: list[list[int]] = []  # noqa: RUF012, one instance

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> int:
            raise NotImplementedError

        def __getitems__(self, indices: list[int]) -> list[int]:
            self.asked.append(indices)
            return indices

    supply = Supply(Wish(Many(), 6, 0, collate=list), position=None, beginnings=Beginnings(), end=8, folder=None)
    assert supply.at(0, 1, 2).batch == DataOrder(20, 0).indices(3, 3)
    assert Many.asked == [DataOrder(20, 0).indices(3, 3)]


def test_whoever_reads_a_stream_next_waits_until_nobody_reads_it_any_more() -> None:
    asked, go_on = threading.Event(), threading.Event()

    class Slow:
        """Its second batch takes until somebody lets it go on."""

        def __iter__(self) -> Iterator[int]:
            yield from range(4)
            asked.set()
            go_on.wait()
            yield from range(4, 64)

    supply = Supply(Wish(Slow(), 4, 0, workers=1), position=None, beginnings=Beginnings(), end=64, folder=None)
    supply.at(0, 0, 1)
    asked.wait()
    with ThreadPoolExecutor(1) as other:
        closed = other.submit(supply.close)
        with pytest.raises(TimeoutError):
            closed.result(0.2)
        go_on.set()
        closed.result()


def test_threads_of_a_supply_that_is_closed_do_not_stay(tmp_path: Path) -> None:
    supply = Supply(Wish(list(range(30)), 3, 0, workers=2), position=None, beginnings=Beginnings(), end=30, folder=tmp_path)
    supply.at(0, 0, 1)
    pool = supply._pool
    assert isinstance(pool, ThreadPoolExecutor)
    supply.close()
    assert all(not thread.is_alive() for thread in pool._threads)


def hugging_face() -> Any:
    return pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")


@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_datasets_are_read_by_index_and_as_streams_that_are_joined_in_the_middle() -> None:
    datasets = hugging_face()
    rows = datasets.Dataset.from_dict({"number": list(range(40))})
    mapped = Supply(Wish(rows, 8, 2), position=None, beginnings=Beginnings(), end=80, folder=None)
    assert mapped.at(32, 1, 2).batch["number"].tolist() == DataOrder(40, 2).indices(36, 4)

    def numbers(process: Process, consumed: int, rank: int, world_size: int) -> list[int]:
        assert process.supply is not None
        part = process.supply.at(consumed, rank, world_size)
        process.position = part.position
        return [row["number"] for row in part.batch]

    first = Process(rows.to_iterable_dataset(num_shards=4), 8, 0, 0, None)
    seen = [number for step in range(7) for number in numbers(first, step * 8, 0, 1)]
    assert Counter(seen) == Counter([*range(40), *seen[40:]])
    second = Process(rows.to_iterable_dataset(num_shards=4), 8, 0, 0, None)
    second.position = first.position
    second.enter()
    joined = numbers(second, 56, 0, 2) + numbers(Process(rows.to_iterable_dataset(num_shards=4), 8, 0, 0, None), 56, 1, 2)
    assert joined == numbers(first, 56, 0, 1)
