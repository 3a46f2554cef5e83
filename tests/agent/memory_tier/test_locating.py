from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path

import pytest

from agent.memory_tier.door import Limits
from agent.memory_tier.line import Answer
from everstep.shards import Manifest, ManifestShard, Seal, ShardKind, complete, manifest_key
from everstep.tiers import TierPlan
from tests.agent.memory_tier.doors import JOB, PEER, PORT, SECRET, Node, digest, nodes, tell, until


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "objects").mkdir()
    return (tmp_path / "objects").as_uri()


def place(made: list[Node], step: int, holders: list[int], *, save: str = "s1", namespace: str = "job") -> dict[int, bytes]:
    """A save whose shard i is sealed on node ``holders[i]``; the last of them is the metadata."""
    bodies = {index: f"{namespace}/{step}/{index}/{save}".encode() for index in range(len(holders))}
    for index, holder in enumerate(holders):
        kind = ShardKind.METADATA if index == len(holders) - 1 else ShardKind.DATA
        made[holder].seal(namespace, index, step, bodies[index], save=save, kind=kind)
    return bodies


def manifest(namespace: str, step: int, *, save: str = "s1", world_size: int = 1) -> Manifest:
    kinds = [ShardKind.DATA] * world_size + [ShardKind.METADATA]
    shards = tuple(ManifestShard(index, kind, 3, digest(b"abc")) for index, kind in enumerate(kinds))
    return Manifest(namespace, step, world_size, save, 1.0, shards)


def publish(node: Node, one: Manifest) -> None:
    node.objects.create(manifest_key(one.namespace, one.step), one.to_json())


def test_a_step_that_is_spread_over_nodes_is_told_by_each_of_them(shm: Path) -> None:
    with nodes(shm, "n1", "n2", "n3") as made:
        place(made, 10, [0, 1, 2])
        place(made, 20, [0, 1, 2])
        made[0].seal("job", 0, 30, b"a save that has not ended")
        for node in made:
            found = node.told("/v1/tier/steps/job?limit=5", JOB)["steps"]
            assert [(one["step"], one["world_size"], one["save"]) for one in found] == [(20, 2, "s1"), (10, 2, "s1")]
            assert [[holder["node"] for holder in holders] for holders in found[0]["shards"]] == [["n1"], ["n2"], ["n3"]]
            assert found[0]["shards"][1] == [{"node": "n2", "address": made[1].address, "port": PORT}]
            assert (found[0]["is_in_memory"], found[0]["is_durable"]) == (True, False)


def test_holders_are_told_nearest_first(shm: Path) -> None:
    names = [f"n{number}" for number in range(6)]
    zones = {name: "a" if number < 3 else "b" for number, name in enumerate(names)}
    with nodes(shm, *names, zones=zones) as made:
        for node in made[1:]:
            node.seal("job", 0, 10, b"shard")
        made[4].seal("job", 1, 10, b"metadata", kind=ShardKind.METADATA)
        seen = [[holder.node for holder in node.locating.steps("job", 1)[0].shards[0]] for node in made]
        for node, holders in zip(made, seen, strict=True):
            assert set(holders) == set(names[1:])
            near = [name for name in holders if zones[name] == node.zone]
            assert holders[: len(near)] == near
            assert node is made[0] or holders[0] == node.name
        assert len({tuple(holders) for holders in seen}) > 1
        assert made[0].locating.spread("job") == {10: 1}


def test_a_lost_node_makes_fewer_steps_visible_and_is_no_error(shm: Path) -> None:
    with nodes(shm, "n1", "n2") as made:
        place(made, 10, [0, 0])
        place(made, 20, [0, 1])
        place(made, 30, [1, 0])
        place(made, 40, [0, 0, 0])
        made[1].kill()
        assert made[0].told("/v1/cp/checkpoints/job/latest", JOB) == [40, 10]
        assert made[0].locating.newest_complete("job") == 40
        assert made[0].ask("GET", "/v1/tier/steps/job/30", headers=JOB)[0].status == 404


def test_whole_clusters_agree_with_a_model_of_them(shm: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    with nodes(shm, *(f"n{number}" for number in range(4))) as made:
        model: list[tuple[int, Seal]] = []
        for step in range(1, 13):
            for save in chance.sample(["a", "b"], chance.randint(1, 2)):
                world = chance.randint(1, 3)
                for index in range(world):
                    for holder in chance.sample(range(4), chance.randint(0, 2) or 1):
                        model.append((holder, made[holder].seal("job", index, step, b"x", save=save)))
                kind, holder = ShardKind.METADATA, chance.randrange(4)
                if chance.random() < 0.9:
                    model.append((holder, made[holder].seal("job", world, step, b"m", save=save, kind=kind)))
        for down in ([], [3], [3, 2]):
            for number in down:
                made[number].kill()
            alive = [seal for holder, seal in model if holder not in down]
            expected = complete(alive)
            for node in (made[number] for number in range(4) if number not in down):
                assert node.locating.complete("job") == expected
                assert [one.step for one in node.locating.steps("job", 99)] == sorted(expected, reverse=True)
                assert node.locating.newest_complete("job") == max(expected, default=None)


def test_a_peer_that_hangs_is_waited_for_once_and_not_for_long(shm: Path) -> None:
    with nodes(shm, "n1", "n2", answer_s=2.0) as made:
        place(made, 10, [0, 0])
        made[1].kill()
        with socket.create_server((made[1].address, PORT)):
            began = time.monotonic()
            assert [one.step for one in made[0].locating.steps("job", 3)] == [10]
            assert 1.0 < time.monotonic() - began < 10.0
            began = time.monotonic()
            assert [one.step for one in made[0].locating.steps("job", 3)] == [10]
            assert time.monotonic() - began < 1.0


def test_who_holds_the_metadata_announces_when_the_last_shard_has_come(shm: Path) -> None:
    with nodes(shm, "n1", "n2", "n3") as made:
        heard: list[list[tuple[str, int]]] = [[], [], []]
        for node, told in zip(made, heard, strict=True):
            node.locating.watch(lambda namespace, step, told=told: told.append((namespace, step)))
        made[0].seal("job", 0, 10, b"shard")
        made[0].seal("job", 2, 10, b"metadata", kind=ShardKind.METADATA)
        assert not made[1].store.seals()
        made[1].seal("job", 1, 10, b"the last")
        until(lambda: all(heard))
        assert heard == [[("job", 10)]] * 3


def test_a_replica_of_the_metadata_speaks_when_its_origin_is_lost(shm: Path) -> None:
    with nodes(shm, "n1", "n2", "n3") as made:
        made[2].locating.watch(heard := Heard())
        made[0].seal("job", 0, 10, b"shard")
        seal = made[0].seal("job", 1, 10, b"metadata", kind=ShardKind.METADATA)
        made[0].locating.close()
        for each in made[0].store.seals("job"):
            with made[0].store.read(each) as reading:
                made[0].peers.push(made[0].peers.all()[0], each, reading.view)
        made[0].kill()
        assert heard.wait() == ("job", seal.step)


class Heard:
    def __init__(self) -> None:
        self._told: list[tuple[str, int]] = []
        self._any = threading.Event()

    def __call__(self, namespace: str, step: int) -> None:
        self._told.append((namespace, step))
        self._any.set()

    def wait(self) -> tuple[str, int]:
        assert self._any.wait(20)
        return self._told[0]


def test_after_a_restart_the_newest_step_is_announced_once_more(shm: Path) -> None:
    with nodes(shm, "n1", "n2") as made:
        place(made, 10, [0, 0])
        until(lambda: made[0].locating.newest_complete("job") == 10)
        made[0].close()
        made[1].locating.watch(heard := Heard())
        again = Node("n1", shm)
        try:
            tell([again, made[1]])
            for seal in again.store.unverified():
                assert again.store.verify(seal)
            again.start()
            assert heard.wait() == ("job", 10)
        finally:
            again.close()


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b"{}",
        b'{"namespace": "../x", "step": 1, "save": ""}',
        b'{"namespace": "job", "step": "1", "save": ""}',
        b"x" * 5000,
    ],
)
def test_an_announcement_that_is_none_is_refused(shm: Path, told: bytes) -> None:
    with nodes(shm, "n1") as (node,):
        assert node.ask("POST", "/v1/tier/complete", told, PEER)[0].status in {400, 413}


def test_in_a_jobs_namespace_what_names_no_save_does_not_count(shm: Path) -> None:
    with nodes(shm, "n1", "n2") as made:
        place(made, 10, [0, 0])
        tell(made[1:], TierPlan(2, allocation_percent=20, secret=SECRET), present=made)  # has not heard of the job
        place([made[1]], 20, [0, 0], save="")
        assert made[0].told("/v1/cp/checkpoints/job/latest", JOB) == [10]


def test_the_newest_of_an_open_namespace_is_what_was_written_last(shm: Path) -> None:
    with nodes(shm, "n1") as (node,):
        for step in (50, 60, 45):
            node.save("ns", 1, step)
        assert node.locating.newest_complete("ns") == 45
        assert node.told("/v1/cp/checkpoints/ns/latest") == [60, 50, 45]
        place([node], 50, [0, 0])
        place([node], 45, [0, 0])
        assert node.locating.newest_complete("job") == 50
        assert node.locating.newest_complete("never-heard-of") is None


def test_steps_in_the_object_store_are_told_beside_those_in_memory(shm: Path, url: str) -> None:
    with nodes(shm, "n1", "n2", url=url) as made:
        place(made, 20, [0, 1])
        place(made, 30, [0, 1], save="another")
        for step, world_size in ((10, 4), (20, 1), (30, 1)):
            publish(made[0], manifest("job", step, world_size=world_size))
        found = {one.step: one for one in made[1].locating.steps("job", 9)}
        assert {step: (one.is_in_memory, one.is_durable) for step, one in found.items()} == {
            30: (True, False),  # what is durable there is another save of the step
            20: (True, True),
            10: (False, True),
        }
        assert (found[10].world_size, found[10].shards) == (4, ((),) * 5)
        assert made[1].objects.counts["reads"] == 0
        assert made[1].locating.newest_complete("job") == 30


def test_an_outage_of_the_store_only_makes_fewer_steps_visible(shm: Path, url: str) -> None:
    with nodes(shm, "n1", url=url) as (node,):
        place([node], 20, [0, 0])
        publish(node, manifest("job", 30))
        assert node.told("/v1/cp/checkpoints/job/latest", JOB) == [30, 20]
        node.objects.is_out = True
        assert node.told("/v1/cp/checkpoints/job/latest", JOB) == [20]
        assert node.locating.manifest("job", 30) is None
        node.objects.is_out = False
        assert node.told("/v1/cp/checkpoints/job/latest", JOB) == [30, 20]


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"null", b'{"namespace": "job"}', manifest("job", 31).to_json(), manifest("other", 30).to_json()]
)
def test_a_manifest_that_is_none_is_no_step(shm: Path, url: str, text: bytes) -> None:
    with nodes(shm, "n1", url=url) as (node,):
        place([node], 20, [0, 0])
        node.objects.put(manifest_key("job", 30), text)
        assert node.told("/v1/cp/checkpoints/job/latest", JOB) == [20]


def test_patience_for_idle_clients_outlasts_the_pauses_between_saves() -> None:
    assert Limits().idle_s >= 600


def test_a_question_that_ends_after_the_tier_leaves_no_connection_behind(shm: Path) -> None:
    with nodes(shm, "n1", "n2") as (one, two):
        (peer,) = one.peers.all()
        line = one.peers._dial(two.address, PORT)
        one.peers.close()
        one.peers._keep(peer, line, Answer(200, {}, 0))
        assert line._connection.fileno() == -1
        assert one.peers.all() == ()


def test_steps_are_told_after_what_was_adopted_has_been_looked_at(shm: Path) -> None:
    settled: list[int] = []
    with nodes(shm, "n1", settle=lambda: settled.append(1)) as (node,):
        place([node], 10, [0, 0])
        for number, path in enumerate(("/v1/cp/checkpoints/job/latest", "/v1/tier/steps/job", "/v1/tier/steps/job/10"), 1):
            node.told(path, JOB)
            assert len(settled) == number


def inventories_asked(made: list[Node]) -> int:
    told = [sample for node in made for sample in node.counts.samples() if sample.name == "everstep_tier_requests_total"]
    return round(sum(sample.value for sample in told if ("route", "inventory") in dict(sample.labels).items()))


def test_what_is_announced_to_many_is_known_by_all_and_makes_nobody_ask_everybody(shm: Path) -> None:
    names = [f"n{number}" for number in range(8)]
    with nodes(
        shm, *names, few=2, echo_s=60.0
    ) as made:  # on a busy machine holders of replicas would look for what was slow to be told
        place(made, 10, [0, 1, 2])
        for node in made:
            until(lambda node=node: node.locating.newest_complete("job") == 10)
        before = inventories_asked(made)
        place(made, 20, [3, 4, 5])
        until(lambda: all(node.locating.newest_complete("job") == 20 for node in made))
        assert all(node.locating.complete("job")[20] == (2, "s1") for node in made)
        until(lambda: {node.locating.spread("job")[20] for node in made if node is not made[5]} == {1})
        place(made, 20, [6, 7, 0])
        until(lambda: all(node.locating.spread("job")[20] == 2 for node in made if node is not made[5]))
        others = len(made) - 1
        assert inventories_asked(made) - before < 2 * len(made) * others / 2, "not every node has asked every other one"
        for node in made:
            node.locating.forget("job")
        assert all(node.locating.complete("job")[20] == (2, "s1") for node in made), "who asks finds the same"
