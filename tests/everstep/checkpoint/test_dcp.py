"""DCP's own calls, and ours without its collectives, against real memory tiers and an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.tiers import Tiers, memory_tiers
from tests.everstep.checkpoint import programs
from tests.everstep.checkpoint.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def workers():
    with ranks(4) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> list[dict[str, str]]:
    """A job without a memory tier."""
    return [{"EVERSTEP_DURABLE_URL": (tmp_path / "objects" / "checkpoints").as_uri(), "EVERSTEP_NAMESPACE": "ns"}]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with memory_tiers(tmp_path_factory.mktemp("pair"), 2) as made:
        yield made


def environments(tiers: Tiers) -> list[dict[str, str]]:
    return [node.environment() for node in tiers]


@pytest.mark.parametrize("how", ["dcp", "async", "overlap", "direct", "direct-async"])
def test_every_kind_of_value_comes_back_bit_for_bit_from_memory(workers: Ranks, pair: Tiers, how: str):
    first = 10 + 2 * ["dcp", "async", "overlap", "direct", "direct-async"].index(how)
    for step in (first, first + 1):  # the second save finds a plan, a mapping and a division of the state
        told = workers.run(2, programs.save, environments(pair), how, step)
        found = workers.run(2, programs.load, environments(pair))
        assert [one["step"] for one in found] == [step] * 2
        assert {one["digest"] for one in found} == set(told)
        assert all(one["counts"]["store"] == 0 and one["reads"] == 0 for one in found)
    assert {one["digest"] for one in workers.run(2, programs.load, environments(pair), "direct")} == set(told)


@pytest.mark.parametrize("how", ["dcp", "async", "direct"])
def test_without_a_memory_tier_durable_steps_go_straight_to_the_store(workers: Ranks, store, how: str):
    told = workers.run(2, programs.save, store, how, 3, True)
    found = workers.run(2, programs.load, store)
    assert {(one["step"], one["digest"]) for one in found} == {(3, digest) for digest in told}
    assert all(one["counts"]["memory"] == 0 for one in found)


def test_a_reader_of_an_empty_namespace_says_that_there_is_nothing(workers: Ranks, store):
    assert [one["step"] for one in workers.run(2, programs.load, store)] == [None, None]
    assert [one["step"] for one in workers.run(2, programs.load, store, "direct")] == [None, None]


def test_a_step_that_is_asked_for_is_loaded_though_newer_ones_exist(workers: Ranks, store):
    told = [workers.run(1, programs.save, store, "dcp", step, True)[0] for step in (1, 2)]
    assert workers.run(1, programs.load, store, "dcp", 1)[0]["digest"] == told[0]
    assert workers.run(1, programs.load, store, "dcp")[0]["digest"] == told[1]


def test_a_mapped_load_shows_the_same_state_and_copies_nothing_that_lies_here(workers: Ranks, tmp_path: Path):
    with memory_tiers(tmp_path, 1) as tiers:
        told = workers.run(1, programs.save, environments(tiers), "dcp", 1)
        options = {"how": "dcp", "step": 1, "mapped": True}
        first = workers.run(1, programs.load_with, environments(tiers), options)[0]
        assert first["digest"] == told[0]


def test_the_plan_is_made_once_and_again_only_when_a_shape_changes(workers: Ranks, store):
    counted = workers.run(2, programs.count_plans, store, [8, 8, 8, 6, 6])
    assert counted == [[(1, 1), (0, 0), (0, 0), (1, 1), (0, 0)]] * 2


@pytest.mark.parametrize("how", ["dcp", "async"])
def test_a_save_without_room_says_so_on_every_rank_and_the_next_one_works(workers: Ranks, pair: Tiers, how: str):
    for words in workers.run(2, programs.save_refused, environments(pair), 100, 1 << 30, how):
        assert "step 100 is not saved" in words
        assert "make the step durable or give the memory tier more room" in words
    told = workers.run(2, programs.save, environments(pair), how, 101)
    assert {one["digest"] for one in workers.run(2, programs.load, environments(pair))} == set(told)


def test_a_planner_that_caches_plans_gives_every_save_a_name_of_its_own(workers: Ranks, pair: Tiers):
    told = workers.run(2, programs.save_with_cached_plans, environments(pair), [200, 201, 202])
    for number, step in enumerate((200, 201, 202)):
        found = workers.run(2, programs.load, environments(pair), "dcp", step)
        assert [one["digest"] for one in found] == [of_rank[number] for of_rank in told]


def test_a_part_of_the_world_can_save_though_it_has_staged_as_another_rank(workers: Ranks, pair: Tiers):
    assert workers.run(2, programs.save_in_a_part_of_the_world, environments(pair), 210)[1] == "True x"


def test_a_save_without_collectives_is_refused_with_the_reason(workers: Ranks, pair: Tiers):
    assert "leave use_collectives at True" in workers.run(1, programs.save_without_collectives, environments(pair), 220)[0]


def test_a_state_of_another_shape_than_the_steps_is_told_which_tensor_differs(workers: Ranks, pair: Tiers):
    workers.run(1, programs.save, environments(pair), "direct", 230)
    assert "scalar" in workers.run(1, programs.load_with_another_shape, environments(pair), 230)[0]
