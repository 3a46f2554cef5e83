"""What stays in memory on real tiers: the step before the newest one until that has its replicas, and never less than one complete step."""

from __future__ import annotations

import pytest

from tests.agent.memory_tier.hands import KIB, save_step, write_shard
from tests.checkpoint.tiers import memory_tiers, planned, until

MIB = 1 << 20


def held(node, namespace="ns"):
    return {int(path.name) for path in node.folder.glob(f"ns/{namespace}/*") if list(path.glob("*.json"))}


@pytest.mark.parametrize("keep", [1, 3])
def test_so_many_complete_steps_stay_and_older_ones_go(tmp_path, keep):
    with memory_tiers(tmp_path, namespaces=[planned(keep_in_memory=keep, replicas=1)]) as (node,):
        for step in range(10, 60, 10):
            save_step(node, step)
        until(lambda: held(node) == {10 * each for each in range(6 - keep, 6)}, f"{keep} steps stay")


def test_an_incomplete_step_sends_no_complete_one_away(tmp_path):
    with memory_tiers(tmp_path, namespaces=[planned(keep_in_memory=1, replicas=1)]) as (node,):
        save_step(node, 10)
        with node.talk() as ask:
            write_shard(ask, 0, 20, b"data")
            write_shard(ask, 0, 30, b"data")
            write_shard(ask, 2, 30, b"metadata of a world of two", kind="metadata")
            save_step(node, 5)
            until(lambda: 5 not in held(node), "retention has been at work")
            assert held(node) == {10, 20, 30}


def test_the_step_before_stays_until_the_newest_one_has_its_replicas(tmp_path):
    with memory_tiers(tmp_path, 2, namespaces=[planned(keep_in_memory=1, replicas=2)]) as (first, second):
        save_step(first, 10)
        until(lambda: held(second) == {10}, "step 10 has its replica")
        second.kill()
        save_step(first, 20)
        save_step(first, 5)
        with first.talk() as ask:
            assert ask("wait", step=20, replicas=2, durable=False, seconds=0.5)["replicas"] == 1
        assert {10, 20} <= held(first)
        second.start()
        until(lambda: held(first) == {20} and held(second) == {20}, "step 20 has its replica, and step 10 goes")


def test_a_plan_without_the_other_node_asks_for_no_replica(tmp_path):
    with memory_tiers(tmp_path, 2, namespaces=[planned(keep_in_memory=1, replicas=2)]) as tiers:
        save_step(tiers[0], 10)
        tiers[1].lose()
        tiers.tell(present=[tiers[0]])
        save_step(tiers[0], 20)
        until(lambda: held(tiers[0]) == {20}, "step 10 goes")


def test_pinned_steps_stay(tmp_path):
    with memory_tiers(tmp_path, namespaces=[planned(keep_in_memory=1, replicas=1, pinned=(10,))]) as (node,):
        for step in (10, 20, 30):
            save_step(node, step)
        until(lambda: held(node) == {10, 30}, "the pinned step stays")


def test_jobs_on_one_node_keep_their_newest_steps_when_memory_is_short(tmp_path):
    namespaces = [planned("ns", replicas=1), planned("other", replicas=1)]
    with memory_tiers(tmp_path, memory_mib=100, allocation_percent=40, namespaces=namespaces) as (node,):
        for step in (10, 20, 30):
            save_step(node, step, content=b"x" * 9 * MIB)
        until(lambda: held(node) == {10, 20, 30}, "all three fit")
        save_step(node, 1, content=b"y" * 15 * MIB, namespace="other")
        assert held(node, "other") == {1}
        assert 30 in held(node)
        with node.talk() as ask:
            assert "refused" in ask("open", index=0, step=40, nbytes=39 * MIB)
            assert [one["step"] for one in ask("find", step=None, limit=1)["steps"]] == [30]


def test_a_save_that_is_done_again_loses_nothing_before_it_is_complete(tmp_path):
    with memory_tiers(tmp_path, namespaces=[planned(keep_in_memory=1, replicas=1)]) as (node,):
        save_step(node, 10, content=b"first", save="a")
        with node.talk() as ask:
            write_shard(ask, 0, 10, b"second", save="b")
            (found,) = ask("find", step=10, limit=1)["steps"]
            assert found["save"] == "a"
            write_shard(ask, 1, 10, b"metadata", kind="metadata", save="b")
            (found,) = ask("find", step=10, limit=1)["steps"]
            assert found["save"] == "b"
        until(lambda: len(list(node.folder.glob("ns/ns/10/*.json"))) == 2, "the superseded save goes")


def test_the_memory_of_a_segment_goes_round(tmp_path):
    with memory_tiers(tmp_path, memory_mib=64, allocation_percent=50, namespaces=[planned(keep_in_memory=2, replicas=1)]) as (
        node,
    ):
        for step in range(40):
            save_step(node, step, content=b"x" * 900 * KIB)
        assert 39 in held(node)
        assert sum(path.stat().st_size for path in node.folder.rglob("*") if path.is_file()) < 32 * MIB


def test_two_segments_are_enough_where_one_step_is_kept_and_replicated(tmp_path):
    """Otherwise a budget that is just large enough would refuse every other save."""
    with memory_tiers(tmp_path, 2, memory_mib=100, namespaces=[planned(keep_in_memory=1, replicas=2)]) as (first, second):
        for step in range(10, 100, 10):
            with first.talk() as ask:
                for index, kind in ((0, "data"), (1, "metadata")):
                    answer = write_shard(ask, index, step, b"x" * 5 * MIB, kind=kind)
                    assert "seal" in answer, (step, answer)
                assert ask("wait", step=step, replicas=2, durable=False, seconds=20)["replicas"] == 2
        until(lambda: held(first) == {90} and held(second) == {90}, "one step is left")
