"""Replicas between real doors: made at once, where they should be, made anew after losses, and never without end."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, contextmanager

import pytest

from agent.memory_tier.replication import AWAY_S, FULL_S, LOOK_S, Replication
from everstep.shards import STAMP_BYTES, ShardKind
from everstep.tiers import TierPlan
from tests.agent.memory_tier import doors
from tests.agent.memory_tier.nodes import Clock, planned

KIB = 1024
MIB = 1 << 20


class Cluster:
    """Nodes with doors whose replication is driven by hand. ``lose`` ends a door, as the loss of a node would."""

    def __init__(self, made, *, replicas):
        self.clock = Clock(time.time())
        self.nodes = {node.name: node for node in made}
        self.replicas = replicas
        self.moving = {
            node.name: Replication(node.store, node.peers, node=node.name, now=self.clock, rng=random.Random(node.name))
            for node in made
        }

    def tell(self, *, present=None):
        names = present or list(self.nodes)
        plan = TierPlan(1, allocation_percent=20, secret=doors.SECRET, namespaces=(planned("job", replicas=self.replicas),))
        made = [self.nodes[name] for name in names]
        doors.tell(made, plan, present=made)
        for node in made:
            self.moving[node.name].know(plan_of(node, made, plan))

    def settle(self, *names, turns=400):
        """Until nothing is due now, anywhere."""
        for _ in range(turns):
            due = [self.moving[name].turn() for name in names or self.nodes]
            if min(due) > 0:
                return
        raise AssertionError("it does not come to rest")

    def pass_time(self, seconds, *names):
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.settle(*names)
            self.clock.now += 0.5

    def holders(self, index, step, namespace="job"):
        return sorted(name for name, node in self.nodes.items() if node.store.find(namespace, index, step) is not None)

    def lose(self, name):
        self.nodes[name].kill()
        self.nodes[name].store.drop("job", why="the node is lost")


def plan_of(node, made, plan):
    peers = tuple(doors.TierPeer(one.name, one.address, one.zone) for one in made if one is not node)
    return TierPlan(**{**vars(plan), "peers": peers, "zone": node.zone})


@contextmanager
def cluster(shm, *names, replicas=2, **more):
    with doors.nodes(shm, *names, **more) as made:
        found = Cluster(made, replicas=replicas)
        found.tell()
        try:
            yield found
        finally:
            for one in found.moving.values():
                one.stop()


def flip(shm, name, seal):
    path = next((shm / name / "ns" / seal.namespace / str(seal.step)).glob(f"{seal.index}-*[!n]"))
    with path.open("r+b") as stream:
        stream.seek(STAMP_BYTES + 10)
        byte = stream.read(1)
        stream.seek(STAMP_BYTES + 10)
        stream.write(bytes([byte[0] ^ 1]))


def body_of(node, seal):
    with node.store.read(seal) as reading:
        return bytes(reading.view)


# ------------------------------------------------------------ making them


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_sealed_shard_has_as_many_copies_as_its_plan_says(shm, replicas):
    with cluster(shm, "a", "b", "c", replicas=replicas) as found:
        seal = found.nodes["a"].seal("job", 0, 10, os.urandom(70 * KIB))
        found.settle()
        assert len(found.holders(0, 10)) == replicas
        assert found.moving["a"].copies(seal) == replicas
        assert found.moving["a"].lag().shards == 0


def test_metadata_has_its_copies_as_any_shard(shm):
    with cluster(shm, "a", "b") as found:
        found.nodes["a"].seal("job", 1, 10, b"{}", kind=ShardKind.METADATA)
        found.settle()
        assert found.holders(1, 10) == ["a", "b"]


def test_what_no_plan_names_is_a_foreign_client_s_and_has_a_replica_too(shm):
    with cluster(shm, "a", "b", "c") as found:
        found.nodes["a"].seal("foreign", 0, 10, b"x")
        found.settle()
        assert len(found.holders(0, 10, "foreign")) == 2


def test_a_replica_is_not_replicated_by_who_holds_it(shm):
    with cluster(shm, "a", "b", "c", replicas=2) as found:
        found.nodes["a"].seal("job", 0, 10, b"x")
        found.settle()
        found.pass_time(3 * LOOK_S)
        assert len(found.holders(0, 10)) == 2


def test_replicas_go_to_another_zone_when_there_is_one(shm):
    zones = {"a": "z1", "b": "z1", "c": "z2"}
    with cluster(shm, "a", "b", "c", zones=zones) as found:
        found.nodes["a"].seal("job", 0, 10, b"x")
        found.settle()
        assert found.holders(0, 10) == ["a", "c"]


def test_the_newest_step_goes_first_and_what_has_gone_meanwhile_is_no_work(shm):
    with cluster(shm, "a", "b") as found:
        a, moving = found.nodes["a"], found.moving["a"]
        for step in (10, 20, 30):
            a.seal("job", 0, step, b"x" * step)
        while not found.nodes["b"].store.seals():
            moving.turn()
        assert found.holders(0, 30) == ["a", "b"]
        a.store.drop("job", step=10, why="retention")
        found.settle()
        assert found.holders(0, 20) == ["a", "b"]
        assert found.holders(0, 10) == []


def test_several_threads_make_each_replica_once(shm):
    with cluster(shm, "a", "b", "c", replicas=3) as found:
        found.clock = time.time
        a = found.nodes["a"]
        moving = Replication(a.store, a.peers, node="a", now=time.time, rng=random.Random(1))
        moving.know(plan_of(a, list(found.nodes.values()), TierPlan(1, namespaces=(planned("job", replicas=3),))))
        moving.start()
        sizes = [a.seal("job", index, 10, os.urandom(40 * KIB)).size for index in range(12)]
        assert moving.wait("job", 10, 3, 20.0) == 3
        moving.stop()
        assert a.peers.pushed_bytes == 2 * sum(sizes)


# ------------------------------------------------------------ losing them


def test_the_writer_makes_another_replica_when_a_holder_is_lost(shm):
    with cluster(shm, "a", "b", "c") as found:
        seal = found.nodes["a"].seal("job", 0, 10, b"x")
        found.settle()
        lost = next(name for name in found.holders(0, 10) if name != "a")
        found.lose(lost)
        left = [name for name in found.nodes if name != lost]
        found.tell(present=left)
        found.settle(*left)
        assert found.holders(0, 10) == left
        assert found.moving["a"].copies(seal) == 2


def test_a_surviving_holder_makes_the_replicas_of_a_writer_that_is_lost_and_only_one_does(shm):
    with cluster(shm, "a", "b", "c", "d", replicas=3) as found:
        body = os.urandom(50 * KIB)
        found.nodes["a"].seal("job", 0, 10, body)
        found.settle()
        pushed = {name: node.peers.pushed_bytes for name, node in found.nodes.items()}
        found.lose("a")
        left = ["b", "c", "d"]
        found.tell(present=left)
        found.settle(*left)
        assert found.holders(0, 10) == left
        assert sum(found.nodes[name].peers.pushed_bytes - pushed[name] for name in left) == len(body)
        assert all(body_of(found.nodes[name], found.nodes[name].store.find("job", 0, 10)) == body for name in left)


def test_a_peer_that_does_not_answer_for_long_is_replaced_before_the_plan_says_so(shm):
    with cluster(shm, "a", "b", "c") as found:
        found.nodes["a"].seal("job", 0, 10, b"x")
        found.settle()
        lost = next(name for name in found.holders(0, 10) if name != "a")
        left = [name for name in found.nodes if name != lost]
        found.nodes[lost].kill()
        found.pass_time(LOOK_S + AWAY_S / 2, *left)
        assert len(found.holders(0, 10)) == 2, "it may come back"
        found.pass_time(2 * LOOK_S + AWAY_S, *left)
        assert set(left) <= set(found.holders(0, 10))


def test_a_tier_that_has_lost_its_memory_gets_its_shards_back_as_replicas(shm):
    with cluster(shm, "a", "b") as found:
        found.nodes["a"].seal("job", 0, 10, b"x" * 1000)
        found.settle()
        found.nodes["a"].store.drop("job", why="its process and its memory were lost")
        found.pass_time(2 * LOOK_S)
        assert found.holders(0, 10) == ["a", "b"]


def test_what_a_peer_has_let_go_of_by_retention_is_not_pushed_again(shm):
    with cluster(shm, "a", "b") as found:
        for step in (10, 20, 30):
            found.nodes["a"].seal("job", 0, step, b"x")
        found.settle()
        found.nodes["b"].store.drop("job", step=10, why="retention is a little earlier there")
        found.pass_time(3 * LOOK_S)
        assert found.holders(0, 10) == ["a"]


def test_a_writer_that_lost_its_memory_and_got_other_shards_since_is_not_taken_for_a_holder(shm):
    with cluster(shm, "a", "b", "c", replicas=2) as found:
        for index, name in enumerate(found.nodes):
            found.nodes[name].seal("job", index, 10, os.urandom(1000))
        found.settle()
        for lost in ("a", "b", "c", "a"):
            found.nodes[lost].store.drop("job", why="its process and its memory were lost")
            found.pass_time(2 * LOOK_S)
            assert all(len(found.holders(index, 10)) >= 2 for index in range(3)), lost


def test_a_peer_without_room_is_passed_over_and_asked_again_later(shm):
    with doors.nodes(shm, "a", "c") as large, doors.nodes(shm, "b", allocated=1 * MIB) as small:
        found = Cluster([*large, *small], replicas=3)
        found.tell()
        seal = found.nodes["a"].seal("job", 0, 10, os.urandom(2 * MIB))
        found.settle()
        assert found.holders(0, 10) == ["a", "c"]
        assert found.moving["a"].lag().nbytes == seal.size
        found.nodes["b"].store.resize(8 * MIB)
        found.clock.now += FULL_S + 1
        found.settle()
        assert found.holders(0, 10) == ["a", "b", "c"]


def test_a_new_process_finds_the_replicas_that_the_one_before_it_has_made(shm):
    with cluster(shm, "a", "b") as found:
        seal = found.nodes["a"].seal("job", 0, 10, os.urandom(70 * KIB))
        found.settle()
        a = found.nodes["a"]
        again = Replication(a.store, a.peers, node="a", now=found.clock, rng=random.Random(2))
        again.know(plan_of(a, list(found.nodes.values()), TierPlan(1, namespaces=(planned("job"),))))
        while again.turn() == 0.0:
            pass
        assert again.copies(seal) == 2
        assert a.peers.pushed_bytes == seal.size
        again.stop()


# ------------------------------------------------------------ corrupt copies


@pytest.mark.parametrize("where", ["a", "b"])
def test_a_corrupt_copy_comes_back_from_a_good_one_wherever_it_was(shm, where):
    with cluster(shm, "a", "b") as found:
        body = os.urandom(70 * KIB)
        found.nodes["a"].seal("job", 0, 10, body)
        found.settle()
        node = found.nodes[where]
        seal = node.store.find("job", 0, 10)
        flip(shm, where, seal)
        assert not node.store.verify(seal)
        assert node.store.find("job", 0, 10) is None
        found.settle()
        again = node.store.find("job", 0, 10)
        assert body_of(node, again) == body
        assert (again.origin, again.written_at) == ("a", seal.written_at)


def test_a_corrupt_shard_that_nobody_else_has_is_not_asked_for_for_ever(shm):
    with cluster(shm, "a", "b", replicas=1) as found:
        seal = found.nodes["a"].seal("job", 0, 10, os.urandom(70 * KIB))
        flip(shm, "a", seal)
        assert not found.nodes["a"].store.verify(seal)
        found.pass_time(700)
        assert found.moving["a"]._repairs == {}


def test_a_shard_that_is_corrupt_here_is_noticed_when_its_replica_is_refused(shm):
    with cluster(shm, "a", "b") as found:
        seal = found.nodes["a"].seal("job", 0, 10, os.urandom(70 * KIB))
        flip(shm, "a", seal)
        found.pass_time(FULL_S + 1)
        assert found.holders(0, 10) == []


# ------------------------------------------------------------ any order of events


@pytest.mark.parametrize("number", range(3))
def test_after_any_losses_every_shard_that_is_left_has_its_copies_again(shm, number):
    seed = int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = ["a", "b", "c", "d", "e"]
    with ExitStack() as opened:
        found = opened.enter_context(cluster(shm, *names, replicas=2))
        alive = set(names)
        for step in range(10, 60, 10):
            for index, name in enumerate(sorted(alive)):
                found.nodes[name].seal("job", index, step, os.urandom(rng.randrange(1, 90 * KIB)), save=f"s{step}")
                if rng.random() < 0.5:
                    found.settle(*alive, turns=rng.randrange(400, 500))
            if rng.random() < 0.5 and len(alive) > 3:
                lost = rng.choice(sorted(alive))
                alive.discard(lost)
                found.lose(lost)
                found.tell(present=sorted(alive))
        found.settle(*alive)
        found.pass_time(2 * LOOK_S, *alive)
        held = {(seal.index, seal.step, seal.digest) for name in alive for seal in found.nodes[name].store.seals("job")}
        for index, step, _ in held:
            assert len([name for name in found.holders(index, step) if name in alive]) >= 2, (index, step)
        assert all(found.moving[name].lag().shards == 0 for name in alive)
