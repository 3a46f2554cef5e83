"""What a node's tier may take, in numbers and in words."""

from __future__ import annotations

import threading

import pytest

from agent.memory_tier import budget
from agent.memory_tier.budget import MIB, Budget, NoRoom


def plenty():
    return 1 << 50


def test_a_percentage_is_of_what_the_node_was_given():
    assert budget.share_of(30, node_mib=1000, machine_bytes=8000 * MIB) == 300 * MIB


def test_a_percentage_is_of_the_machine_when_that_is_smaller():
    assert budget.share_of(30, node_mib=16_000, machine_bytes=8000 * MIB) == 2400 * MIB


def test_what_is_left_to_others_grows_with_the_machine():
    assert budget.reserve_of(4096 * MIB) == 256 * MIB
    assert budget.reserve_of(2 << 40) == (2 << 40) * 2 // 100


def test_a_grant_beyond_the_cap_is_refused_with_what_was_asked_what_is_free_and_what_to_do():
    granted = Budget(100 * MIB, available=plenty, reserve=0)
    granted.take(60 * MIB)
    with pytest.raises(
        NoRoom, match=r"50\.0 MiB is refused: 40\.0 MiB of the 100\.0 MiB .* raise InstanceMemoryAllocationPercentage"
    ):
        granted.take(50 * MIB)
    assert granted.used == 60 * MIB
    granted.put_back(60 * MIB)
    granted.take(100 * MIB)


def test_a_grant_that_would_take_what_others_need_is_refused():
    granted = Budget(100 * MIB, available=lambda: 60 * MIB, reserve=30 * MIB)
    with pytest.raises(NoRoom, match=r"60\.0 MiB of memory available and keeps 30\.0 MiB"):
        granted.take(31 * MIB)
    granted.take(30 * MIB)


def test_a_lowered_cap_leaves_an_excess():
    granted = Budget(100 * MIB, available=plenty, reserve=0)
    granted.take(80 * MIB)
    granted.allocated = 50 * MIB
    assert (granted.excess, granted.free) == (30 * MIB, 0)


def test_many_threads_are_never_granted_more_than_the_cap():
    granted = Budget(1000, available=plenty, reserve=0)
    got = []

    def ask():
        for _ in range(100):
            try:
                granted.take(7)
            except NoRoom:
                continue
            got.append(7)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == granted.used == 994


def test_the_kernels_own_words_on_memory_are_understood(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemFree: 1 kB\nMemAvailable:    50 kB\n")
    assert budget.total_bytes(meminfo) == 100 * 1024
    assert budget.available_bytes(meminfo) == 50 * 1024
    assert 0 < budget.available_bytes() < budget.total_bytes()
    meminfo.write_text("")
    with pytest.raises(ValueError, match="MemTotal"):
        budget.total_bytes(meminfo)
