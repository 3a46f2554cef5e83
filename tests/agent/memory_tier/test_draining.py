"""Durable steps reach the object store whole, in order and by whoever is there to put them; an outage costs time and nothing else."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack

import pytest

from agent.memory_tier.commit import Durable, seal_key_of, shard_key_of
from agent.memory_tier.objects import Objects, StoreAway
from everstep.shards import Manifest, manifest_key, superseded_key
from everstep.tiers import TierPeer
from tests.agent.memory_tier.nodes import KIB, Clock, Node, content, planned, settle


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def url(tmp_path):
    return (tmp_path / "store").as_uri()


@pytest.fixture
def objects(url):
    return Objects(url, {})


@pytest.fixture
def nodes(shm, url, clock):
    """Makes nodes that share an object store."""
    with ExitStack() as opened:

        def make(*names, **more):
            made = [Node(name, shm, url, clock, **more) for name in names]
            for node in made:
                opened.callback(node.close)
                node.plan()
            return made if len(made) > 1 else made[0]

        yield make


def durable(objects, step, namespace="ns"):
    return Manifest.from_json(objects.look(manifest_key(namespace, step)))


def steps(objects, namespace="ns"):
    looks = Durable(objects)
    found = looks.steps(namespace)
    looks.close()
    return found


def test_a_step_of_one_node_is_put_whole_and_its_manifest_says_what_it_is_made_of(nodes, objects):
    node = nodes("a")
    shards = [content(), content(), content(100)]
    seals = [node.save(10, shards[0]), node.save(10, shards[1], index=1), node.save(10, shards[2], world=2)]
    node.drain()
    manifest = durable(objects, 10)
    assert [(one.index, one.kind, one.size, one.digest) for one in manifest.shards] == [
        (one.index, one.kind, one.size, one.digest) for one in seals
    ]
    assert [bytes(objects.get_range(shard_key_of(seal), 0, seal.size)) for seal in seals] == shards
    assert (manifest.world_size, manifest.save) == (2, "s1")
    assert [(one.step, one.world_size, one.nbytes) for one in node.reports] == [(10, 2, sum(map(len, shards)))]


def test_what_is_not_meant_to_be_durable_stays_in_memory(nodes, objects):
    node = nodes("a")
    node.save(10, content(), is_durable=False)
    node.save(10, content(), world=1, is_durable=False)
    node.drain()
    assert objects.list("") == ()
    assert node.draining.backlog().nbytes == 0


def test_a_step_that_the_plan_asks_for_is_drained_whatever_its_seals_say(nodes, objects):
    node = nodes("a")
    node.save(10, content(), is_durable=False)
    node.save(10, content(), world=1, is_durable=False)
    node.plan(planned(drain=(10,)))
    node.drain()
    assert steps(objects) == (10,)


def test_a_step_that_the_plan_drops_is_not_drained(nodes, objects):
    node = nodes("a")
    node.plan(planned(dropped=(10,)))
    node.save(10, content())
    node.save(10, content(), world=1)
    node.drain()
    assert objects.list("") == ()


def test_the_folder_of_rank_0_appears_only_after_all_other_ranks_have_put_theirs(nodes, objects, clock):
    a, b = nodes("a", "b")
    a.save(10, content())
    a.save(10, content(), world=2)
    settle(clock, a)
    assert objects.list("ns/rank_0") == ()
    b.save(10, content(), index=1)
    settle(clock, a, b)
    assert steps(objects) == (10,)
    assert [bool(node.reports) for node in (a, b)] == [True, False], "whoever holds the metadata tells it"


def test_shards_of_different_saves_of_a_step_never_make_a_manifest(nodes, objects, clock):
    a, b = nodes("a", "b")
    a.save(10, content(), save="s1")
    a.save(10, content(), world=2, save="s1")
    b.save(10, content(), index=1, save="s2")
    settle(clock, a, b)
    assert steps(objects) == ()


def test_a_step_written_again_moves_its_old_manifest_away_before_its_bytes_change(nodes, objects, clock):
    node = nodes("a")
    node.save(10, content())
    node.save(10, content(), index=1)
    node.save(10, content(), world=2)
    settle(clock, node)
    before = durable(objects, 10)
    node.save(10, content(), save="s2")
    settle(clock, node, seconds=5)
    assert durable(objects, 10) == before, "nothing of rank 0's is touched until all is there"
    shard = node.save(10, content(), index=1, save="s2")
    settle(clock, node, seconds=5)
    assert steps(objects) == ()
    assert json.loads(objects.look(superseded_key("ns", 10, "s1"))) == before.to_wire()
    node.save(10, content(), world=2, save="s2")
    settle(clock, node)
    assert (durable(objects, 10).save, durable(objects, 10).shards[1].digest) == ("s2", shard.digest)


def test_what_has_been_put_before_a_crash_is_not_put_again_after_it(nodes, objects, clock, shm, url):
    first, other = nodes("a", "b")
    first.save(10, content(), index=1)
    first.drain()
    again = nodes("a")
    for seal in again.store.unverified():
        assert again.store.verify(seal)
    again.drain()
    assert again.objects.counts["writes"] == 0
    other.save(10, content())
    other.save(10, content(), world=2)
    settle(clock, other, again)
    assert steps(objects) == (10,)


def test_bytes_that_memory_has_lost_are_not_made_durable(nodes, objects, shm):
    node = nodes("a")
    seal = node.save(10, content())
    path = next((shm / "a" / "ns" / "ns" / "10").glob("0-*[!n]"))
    with path.open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"\xff\x00\xff")
    node.save(10, content(), world=1)
    node.drain()
    assert steps(objects) == ()
    assert shard_key_of(seal) not in objects.list("")


def test_a_replica_is_put_by_its_holder_when_the_node_that_wrote_it_is_gone(nodes, objects, clock):
    a, b = nodes("a", "b")
    lost = content()
    a.save(10, content())
    a.save(10, content(), world=2)
    b.save(10, lost, index=1)
    replica = a.save(10, lost, index=1, origin="b")
    settle(clock, a, seconds=4)
    assert seal_key_of(replica) not in objects.list(""), "its writer is left alone with it for a while"
    settle(clock, a, seconds=20)
    assert steps(objects) == (10,)


# ------------------------------------------------------------ outages


def test_an_outage_keeps_steps_in_memory_and_afterwards_they_go_in_order(nodes, objects, clock):
    node = nodes("a")
    node.plan(is_store_out=True)
    for step in (10, 20, 30):
        node.save(step, content())
        node.save(step, content(), world=1)
        settle(clock, node, seconds=15)
    told = node.draining.backlog()
    assert told.nbytes == 6 * 9 * KIB
    assert told.waiting_since == 1_000_000.0
    assert "outage" in told.outage
    assert node.draining.protected("ns") == {10, 20, 30}
    assert node.draining.newest("ns") is None
    node.plan()
    settle(clock, node, seconds=5)
    assert [told.step for told in node.reports] == [10, 20, 30]
    assert node.draining.told() == tuple(node.reports), "and again to whoever was away"
    assert steps(objects) == (10, 20, 30)
    told = node.draining.backlog()
    assert (told.nbytes, told.waiting_since, told.outage) == (0, None, None)
    assert node.draining.newest("ns")[0] == 30
    assert node.draining.protected("ns") == frozenset()


def test_a_long_backlog_that_another_node_makes_up_for_slowly_is_committed_in_order_too(nodes, objects, clock):
    """Each step waits for those before it, however long the other rank takes to come to them."""
    a, b = nodes("a", "b")
    chance = random.Random(7)
    for step in range(10, 250, 10):
        a.save(step, content(KIB))
        a.save(step, content(KIB), world=2)
        b.save(step, content(KIB), index=1)
        settle(clock, a, seconds=chance.uniform(0.5, 4))
    while len(steps(objects)) < 24:
        for _ in range(chance.randrange(1, 4)):
            b.draining.turn()
        settle(clock, a, seconds=chance.uniform(1, 12))
    assert [told.step for told in a.reports] == list(range(10, 250, 10))


def test_a_store_that_does_not_answer_is_asked_less_and_less_often(nodes, clock):
    node = nodes("a")
    node.plan(is_store_out=True)
    node.save(10, content())
    settle(clock, node, seconds=60)
    early = node.objects.counts["failures"]
    settle(clock, node, seconds=300)
    assert 4 <= early <= 20
    assert node.objects.counts["failures"] - early <= 300 / 7.5 + 1


def test_an_outage_that_ends_when_nothing_waits_any_more_is_noticed_too(nodes, clock):
    node = nodes("a")
    node.plan(is_store_out=True)
    node.save(10, content())
    settle(clock, node, seconds=5)
    node.store.drop("ns", why="of the end of the job")
    assert node.draining.backlog().outage
    node.plan()
    settle(clock, node, seconds=20)
    assert node.draining.backlog().outage is None


def test_a_step_that_goes_before_it_was_put_is_given_up_and_said(nodes, objects, clock):
    node = nodes("a")
    node.plan(is_store_out=True)
    for step in (10, 20):
        node.save(step, content())
        node.save(step, content(), world=1)
    settle(clock, node, seconds=2)
    node.store.drop("ns", step=10, index=0, why="made room for namespace ns")
    told = node.draining.backlog()
    assert told.given_up == 1
    assert "step 10" in told.note
    assert "made room" in told.note
    assert told.nbytes == 2 * 9 * KIB
    node.plan()
    settle(clock, node)
    assert steps(objects) == (20,)


def test_a_step_that_lost_a_shard_is_given_up_when_a_newer_one_is_durable_and_time_has_passed(nodes, objects, clock):
    node = nodes("a")
    node.save(10, content())
    node.save(10, content(), index=2)
    node.save(10, content(), world=3)
    node.save(20, content())
    node.save(20, content(), index=1)
    node.save(20, content(), world=2)
    settle(clock, node, seconds=20)
    assert steps(objects) == (), "the older one may still come"
    settle(clock, node, seconds=40)
    assert steps(objects) == (20,)
    settle(clock, node, seconds=20)
    assert node.draining.protected("ns") == frozenset()
    assert "step 10" in node.draining.backlog().note
    assert not [key for key in objects.list("ns/") if "step_10" in key], "what was put of it is taken back"


def test_a_step_whose_shard_may_be_on_a_node_that_does_not_answer_is_waited_for_much_longer(nodes, objects, clock):
    node = nodes("a")
    node.plan(peers=(TierPeer("away", "127.255.255.1"),))
    node.save(10, content())
    node.save(10, content(), world=2)
    node.save(20, content())
    node.save(20, content(), world=1)
    settle(clock, node, seconds=120)
    assert steps(objects) == (20,)
    assert node.draining.protected("ns") == {10}
    settle(clock, node, seconds=650)
    assert node.draining.protected("ns") == frozenset()


def test_memory_that_is_needed_takes_the_oldest_waiting_step_and_never_the_newest_complete_one(nodes, objects, clock):
    node = nodes("a", allocated=1 << 20)
    node.plan(is_store_out=True)
    for step in range(10, 200, 10):
        node.save(step, content(60 * KIB))
        node.save(step, content(4 * KIB), world=1)
        node.drain()
        node.store.retain("ns", keep=2, newest_complete=step, pinned=node.draining.protected("ns"))
        clock.now += 1
    told = node.draining.backlog()
    assert told.nbytes <= 1 << 20
    assert told.given_up > 0
    node.plan()
    settle(clock, node)
    kept = steps(objects)
    assert kept[-1] == 190
    assert kept == tuple(range(kept[0], 200, 10)), "what was given up is the oldest"
    assert len(kept) + told.given_up == 19


# ------------------------------------------------------------ going back


def test_going_back_moves_newer_durable_steps_away_and_drains_none_of_what_waits(nodes, objects, clock):
    node = nodes("a")
    for step in (10, 20):
        node.save(step, content())
        node.save(step, content(), world=1)
    node.drain()
    node.save(30, content())
    assert node.go_back(10) == (20,)
    assert steps(objects) == (10,)
    settle(clock, node, seconds=2)
    assert node.draining.newest("ns")[0] == 10
    assert objects.list("ns/rank_0/step_30") == ()
    clock.now += 10
    node.save(20, content(), save="s2")
    node.save(20, content(), world=1, save="s2")
    settle(clock, node)
    assert durable(objects, 20).save == "s2"


def test_going_back_during_an_outage_is_made_up_for_afterwards(nodes, objects, clock):
    node = nodes("a")
    for step in (10, 20):
        node.save(step, content())
        node.save(step, content(), world=1)
    node.drain()
    node.plan(is_store_out=True)
    with pytest.raises(StoreAway):
        node.go_back(10)
    settle(clock, node, seconds=10)
    node.plan()
    settle(clock, node, seconds=5)
    assert steps(objects) == (10,)


def test_what_training_went_back_from_is_told_to_be_durable_no_more(nodes, clock):
    node = nodes("a")
    for step in (10, 20):
        node.save(step, content())
        node.save(step, content(), world=1)
    node.drain()
    clock.now += 10
    node.go_back(10)
    told = [(one.step, one.is_withdrawn) for one in node.reports]
    assert told == [(10, False), (20, False), (20, True)]
    assert node.reports[-1].at > node.reports[-2].at
    assert node.draining.backlog().note is None, "nothing of it was given up for want of room"


def test_a_step_that_another_node_commits_late_is_moved_away_by_the_second_pass(nodes, objects, clock):
    a, b = nodes("a", "b")
    b.save(20, content())
    b.save(20, content(), world=1)
    clock.now += 1
    assert a.go_back(10) == ()
    b.drain()
    assert steps(objects) == (20,), "it had not heard of it"
    settle(clock, a, seconds=20)
    assert steps(objects) == ()


def test_the_second_pass_leaves_alone_what_was_saved_again_since_then(nodes, objects, clock):
    node = nodes("a")
    node.save(20, content())
    node.save(20, content(), world=1)
    node.drain()
    clock.now += 1
    node.go_back(10)
    clock.now += 1
    node.save(20, content(), save="s2")
    node.save(20, content(), world=1, save="s2")
    settle(clock, node, seconds=40)
    assert durable(objects, 20).save == "s2"


def test_going_back_during_an_outage_is_made_up_for_by_the_next_process_too(nodes, objects, clock):
    node = nodes("a")
    for step in (10, 20):
        node.save(step, content())
        node.save(step, content(), world=1)
    node.drain()
    clock.now += 1
    node.plan(is_store_out=True)
    with pytest.raises(StoreAway):
        node.go_back(10)
    again = nodes("a")
    settle(clock, again, seconds=2)
    assert steps(objects) == (10,)
    assert again.draining.newest("ns")[0] == 10


# ------------------------------------------------------------ a new process


def test_a_new_process_does_not_bring_back_what_has_been_removed_from_the_store(nodes, objects, clock):
    node = nodes("a")
    for step in (10, 20):
        node.save(step, content())
        node.save(step, content(), world=1)
    node.drain()
    for key in (manifest_key("ns", 10), *objects.list("ns/rank_0/step_10/")):
        objects.delete(key)
    clock.now += 10
    again = nodes("a")
    for seal in again.store.unverified():
        assert again.store.verify(seal)
    settle(clock, again, seconds=10)
    assert steps(objects) == (20,)
    assert again.objects.counts["writes"] == 0
    again.plan(planned(drain=(10,)))
    settle(clock, again, seconds=2)
    assert steps(objects) == (10, 20), "unless it is asked for"


def test_a_new_process_finishes_what_the_one_before_it_had_begun(nodes, objects, clock):
    node = nodes("a")
    node.save(10, content())
    node.save(10, content(), world=1)
    node.drain()
    node.plan(is_store_out=True)
    node.save(20, content())
    node.save(20, content(), world=1)
    clock.now += 10
    again = nodes("a")
    for seal in again.store.unverified():
        assert again.store.verify(seal)
    settle(clock, again, seconds=2)
    assert steps(objects) == (10, 20)


# ------------------------------------------------------------ knowing


def test_a_new_process_knows_what_was_durable_before_it_began(nodes, clock):
    node = nodes("a")
    node.save(10, content())
    node.save(10, content(), world=1)
    node.drain()
    other = nodes("b")
    other.drain()
    assert other.draining.newest("ns") == node.draining.newest("ns")
    assert other.draining.wait("ns", 10, 0.0)
    assert not other.draining.wait("ns", 20, 0.0)


def test_a_thread_of_its_own_drains_what_is_sealed_and_wakes_who_waits_for_it(nodes, objects):
    node = nodes("a")
    node.draining.start()
    node.save(10, content())
    node.save(10, content(), world=1)
    assert node.draining.wait("ns", 10, 20.0)
    assert steps(objects) == (10,)


def test_a_pace_slows_a_large_shard_down_and_changes_nothing_in_it(nodes, objects):
    node = nodes("a", allocated=256 << 20, pace_bytes_per_s=1e12)
    shard = content(40 << 20)
    seal = node.save(10, shard)
    node.save(10, content(), world=1)
    node.drain()
    assert bytes(objects.get_range(shard_key_of(seal), 0, seal.size)) == shard
