"""Training goes back: what was saved beyond is nobody's any more, on whichever node and whenever it turns up."""

from __future__ import annotations

import pytest

from agent.memory_tier.discards import Discards
from everstep.shards import Seal, ShardKind
from tests.agent.memory_tier.hands import save_step
from tests.checkpoint.tiers import memory_tiers, planned, until


def seal(step, at, namespace="ns"):
    return Seal(namespace, 0, step, ShardKind.DATA, 1, "0" * 32, "stamp", at, "save")


@pytest.fixture
def discards(tmp_path):
    return Discards(tmp_path / "discards.json")


def test_what_is_younger_than_the_step_and_older_than_the_moment_is_given_up(discards):
    discards.mark("ns", after=10, at=100.0)
    assert discards.covers(seal(11, at=100.0))
    assert not discards.covers(seal(10, at=50.0))
    assert not discards.covers(seal(11, at=100.5))
    assert not discards.covers(seal(11, at=50.0, namespace="other"))


def test_going_back_twice_gives_up_what_either_gave_up(discards):
    discards.mark("ns", after=20, at=100.0)
    discards.mark("ns", after=30, at=200.0)
    assert discards.covers(seal(25, at=90.0))
    assert discards.covers(seal(35, at=150.0))
    assert not discards.covers(seal(25, at=150.0))


def test_it_is_known_after_a_restart_too(discards, tmp_path):
    discards.mark("ns", after=10, at=100.0)
    assert Discards(tmp_path / "discards.json").covers(seal(11, at=50.0))


def test_a_file_that_says_nothing_is_no_obstacle(tmp_path):
    path = tmp_path / "discards.json"
    for text in ("", "[]", '{"ns": 1}', '{"ns": [["x", "y"]]}'):
        path.write_text(text)
        assert not Discards(path).covers(seal(11, at=50.0))


def found(node):
    with node.talk() as ask:
        return [one["step"] for one in ask("find", step=None, limit=9)["steps"]]


def test_copies_on_other_nodes_are_given_up_also_by_one_that_was_away(tmp_path):
    """A replica that its node brings back later must not be taken for the newest step: two lineages would be mixed."""
    with memory_tiers(tmp_path, 3, namespaces=[planned(replicas=3)]) as tiers:
        for step in (10, 20, 30):
            save_step(tiers[0], step)
        for node in tiers:
            until(lambda node=node: copies(node) == {10, 20, 30}, "every node has a copy of everything")
        tiers[2].kill()
        with tiers[0].talk() as ask:
            assert ask("discard", after=10)["discarded"] == [20, 30]
        until(lambda: copies(tiers[1]) == {10}, "the copies of the node that is there go")
        save_step(tiers[0], 20, content=b"the new lineage", save="anew")
        tiers[2].start()
        assert found(tiers[0]) == [20, 10]
        with tiers[0].talk() as ask:
            (step,) = ask("find", step=20, limit=1)["steps"]
            assert step["save"] == "anew"


def copies(node):
    return {int(path.parent.name) for path in node.folder.glob("ns/ns/*/1-*.json")}


def test_a_node_that_was_away_when_training_went_back_learns_of_it_and_tells_no_step_of_before(tmp_path):
    with memory_tiers(tmp_path, 2) as tiers:
        for step in (10, 20):
            save_step(tiers[0], step, is_durable=step == 20)
        with tiers[0].talk() as ask:
            assert ask("wait", step=20, replicas=2, durable=True, seconds=20) == {"replicas": 2, "is_durable": True}
        tiers[1].kill()
        with tiers[0].talk() as ask:
            assert ask("discard", after=10)["discarded"] == [20]
        tiers[1].start()
        until(lambda: not (tiers[1].folder / "ns/ns/20").exists(), "it has given up what is nobody's any more")
        tiers[0].lose()
        with tiers[1].talk() as ask:
            assert [one["step"] for one in ask("find", step=None, limit=5)["steps"]] == [10], (
                "also when nobody else is left who knows"
            )
