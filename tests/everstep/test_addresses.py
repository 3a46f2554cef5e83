"""gloo's full mesh behind a store that has all addresses at once, and what a store that it does not know is asked."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from everstep.resilience.addresses import Addresses


class Counting(dist.Store):
    """A store of one place that counts what it is asked."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner
        self.asked: list[str] = []

    def set(self, key: str, value: bytes) -> None:
        self.asked.append("set")
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        self.asked.append("get")
        return self.inner.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.asked.append("wait")
        self.inner.wait(keys, timeout or timedelta(seconds=30))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.asked.append("multi_get")
        self.inner.wait(keys, timedelta(seconds=30))
        return self.inner.multi_get(keys)


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_gloo_connects_all_ranks_with_two_requests_each(size: int) -> None:
    shared = dist.HashStore()
    counting = [Counting(shared) for _ in range(size)]
    stores = [Addresses(dist.PrefixStore("g1", one), rank, size) for rank, one in enumerate(counting)]
    met = threading.Barrier(size)

    def play(rank: int) -> float:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        group = dist.ProcessGroupGloo(stores[rank], rank, size, options)
        told = torch.tensor([float(rank)])
        group.allreduce([told]).wait()
        met.wait(60)
        return told.item()

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(play, range(size))) == [sum(range(size))] * size
    assert all(one.asked == ["set", "multi_get"][: len(one.asked)] for one in counting)
    assert all(len(one.asked) == 2 for one in counting) or size == 1


def test_keys_that_are_no_ranks_go_through() -> None:
    counting = Counting(dist.HashStore())
    store = Addresses(counting, 0, 2)
    store.set("unique/id", b"x")
    store.wait(["unique/id"])
    assert store.get("unique/id") == b"x"
    assert counting.asked == ["set", "wait", "get"]
    store.set("0/0", b"here")
    store.set("0/1", b"there")
    assert [store.get(f"0/{rank}") for rank in (1, 0)] == [b"there", b"here"]
    store.set("nccl/0", b"id")
    assert store.get("nccl/0") == b"id"
    assert counting.asked[3:] == ["set", "set", "multi_get", "set", "get"]
