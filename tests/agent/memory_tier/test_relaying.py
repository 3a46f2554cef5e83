from __future__ import annotations

import http.client
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from agent.memory_tier.relaying import CHUNK_BYTES
from everstep.shards import Manifest, ManifestShard, Seal, ShardKind, manifest_key, shard_key, shard_meta
from tests.agent.memory_tier.doors import JOB, METADATA, PEER, PORT, ZIP, Node, digest, meta, nodes, shard, until

LARGE = 2 * CHUNK_BYTES + 12_345


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "objects").mkdir()
    return (tmp_path / "objects").as_uri()


def replicate(origin: Node, *others: Node) -> None:
    for seal in origin.store.seals():
        with origin.store.read(seal) as reading:
            for peer in origin.peers.all():
                if peer.node in {one.name for one in others}:
                    origin.peers.push(peer, seal, reading.view)


def spoil(node: Node, at: int = 0) -> None:
    """Flips a bit of every shard that a node holds, as a bad memory chip would."""
    for held in node.store._held["job"].values():
        held.segment.body[at] ^= 1


def durable(node: Node, bodies: dict[int, bytes], step: int = 10, save: str = "s1") -> None:
    world_size = len(bodies) - 1
    shards = []
    for index, body in bodies.items():
        node.objects.put(shard_key("job", index, step, world_size), body)
        kind = ShardKind.METADATA if index == world_size else ShardKind.DATA
        shards.append(ManifestShard(index, kind, len(body), digest(body)))
    node.objects.create(manifest_key("job", step), Manifest("job", step, world_size, save, 1.0, tuple(shards)).to_json())


@pytest.mark.parametrize("size", [0, 1, 70_000, CHUNK_BYTES, CHUNK_BYTES + 1, LARGE])
def test_a_shard_of_another_node_is_passed_through_and_not_kept(shm: Path, size: int) -> None:
    with nodes(shm, "n1", "n2") as (one, two):
        body = os.urandom(size)
        two.post("ns", 0, 10, body)
        for method in ("GET", "HEAD"):
            answer, told = one.ask(method, shard("ns", 0, 10))
            assert (answer.status, told) == (200, body if method == "GET" else b"")
            assert answer.getheader("Content-Length") == str(size)
            assert answer.getheader("Shard-Meta") == meta(body)
            assert answer.getheader("Everstep-Source") == "peer"
        assert one.store.usage.used == 0
        assert one.ask("GET", f"{shard('ns', 0, 10)}?scope=local")[0].status == 404


def test_a_range_is_passed_through_from_where_it_begins(shm: Path) -> None:
    with nodes(shm, "n1", "n2") as (one, two):
        body = os.urandom(LARGE)
        two.seal("job", 0, 10, body)
        for start, end in ((0, 1), (CHUNK_BYTES - 1, 2 * CHUNK_BYTES + 1), (LARGE - 5, LARGE)):
            answer, told = one.ask("GET", shard("job", 0, 10), headers={**JOB, "Range": f"bytes={start}-{end - 1}"})
            assert (answer.status, told) == (206, body[start:end])
            assert answer.getheader("Content-Range") == f"bytes {start}-{end - 1}/{LARGE}"


def test_one_node_is_killed_and_everything_is_had_through_the_other(shm: Path) -> None:
    with nodes(shm, "n1", "n2") as (one, two):
        bodies = one.save("ns", 2, 10)
        one.save("ns", 2, 20, index=0)
        replicate(one, two)
        one.kill()
        assert two.told("/v1/cp/checkpoints/ns/latest") == [10]
        for index, body in bodies.items():
            assert two.ask("GET", shard("ns", index, 10))[1] == body


def test_what_is_deleted_is_deleted_on_all_nodes_and_does_not_come_back(shm: Path) -> None:
    with nodes(shm, "n1", "n2", "n3") as (one, two, three):
        one.save("ns", 2, 10)
        replicate(one, two, three)
        assert json.loads(one.ask("DELETE", shard("ns", 0, 10))[1]) == {"deleted": 1, "everywhere": True}
        for node in (one, two, three):
            assert node.ask("GET", shard("ns", 0, 10))[0].status == 404
            assert node.ask("GET", shard("ns", 1, 10))[0].status == 200
        three.kill()
        assert json.loads(one.ask("DELETE", "/v1/cp/namespaces/ns")[1]) == {"deleted": 2, "everywhere": False}
        assert two.store.seals() == ()


def test_a_holder_that_dies_in_the_middle_is_replaced_by_the_next(shm: Path) -> None:
    with nodes(shm, "n1", "n2", "n3") as (one, two, three):
        body = os.urandom(16 * CHUNK_BYTES)
        two.seal("job", 0, 10, body)
        replicate(two, three)
        nearest = one.locating.copies("job", 0, 10)[0].peer.node
        client = http.client.HTTPConnection(one.address, PORT, timeout=30)
        client.request("GET", shard("job", 0, 10), headers=JOB)
        answer = client.getresponse()
        told = answer.read(1 << 20)
        {"n2": two, "n3": three}[nearest].kill()
        assert told + answer.read() == body
        client.close()


def test_a_small_shard_that_is_spoilt_at_one_peer_comes_from_the_next(shm: Path) -> None:
    with nodes(shm, "n1", "n2", "n3") as (one, two, three):
        two.seal("job", 0, 10, b"shard")
        replicate(two, three)
        nearest = one.locating.copies("job", 0, 10)[0].peer.node
        spoil({"n2": two, "n3": three}[nearest])
        assert one.ask("GET", shard("job", 0, 10), headers=JOB)[1] == b"shard"


def test_a_shard_that_is_spoilt_here_goes_and_is_given_from_the_next_copy_at_once(shm: Path, url: str) -> None:
    with nodes(shm, "n1", "n2", url=url) as (one, two):
        body = os.urandom(LARGE)
        one.seal("job", 0, 10, body)
        replicate(one, two)
        durable(one, {0: body, 1: b"metadata"}, save="s1")
        for node, source in ((one, "peer"), (two, "store")):
            spoil(node, at=LARGE // 2)
            assert node.ask("GET", f"{shard('job', 0, 10)}?scope=local", headers={**JOB, "Range": "bytes=0-9"})[0].status == 206
            answer, told = node.ask("GET", shard("job", 0, 10), headers=JOB)
            assert (answer.getheader("Everstep-Source"), told == body) == (source, True)
            assert node.store.corruptions == 1
            assert node.ask("GET", f"{shard('job', 0, 10)}?scope=local", headers=JOB)[0].status == 404


def test_a_large_shard_that_is_spoilt_is_never_sent_whole_and_the_next_copy_is_asked_next_time(shm: Path) -> None:
    with nodes(shm, "n1", "n2", "n3") as (one, two, three):
        body = os.urandom(LARGE)
        two.seal("job", 0, 10, body)
        replicate(two, three)
        nearest = one.locating.copies("job", 0, 10)[0].peer.node
        spoil({"n2": two, "n3": three}[nearest], at=LARGE - 1)
        client = http.client.HTTPConnection(one.address, PORT, timeout=30)
        client.request("GET", shard("job", 0, 10), headers=JOB)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            client.getresponse().read()
        client.close()
        assert one.ask("GET", shard("job", 0, 10), headers=JOB)[1] == body


def test_a_shard_that_is_spoilt_everywhere_is_refused_in_words(shm: Path) -> None:
    with nodes(shm, "n1", "n2") as (one, two):
        two.seal("job", 0, 10, b"shard")
        spoil(two)
        answer, told = one.ask("GET", shard("job", 0, 10), headers=JOB)
        assert answer.status == 502
        assert "node n2" in json.loads(told)["error"]


def test_memory_is_asked_before_the_store_and_the_store_when_memory_is_lost(shm: Path, url: str) -> None:
    with nodes(shm, "n1", "n2", url=url) as (one, two):
        bodies = {0: os.urandom(LARGE), 1: b"metadata"}
        for index, body in bodies.items():
            two.seal("job", index, 10, body, kind=ShardKind.METADATA if index else ShardKind.DATA)
        durable(two, bodies)
        answer, told = one.ask("GET", shard("job", 0, 10), headers=JOB)
        assert (told, answer.getheader("Everstep-Source")) == (bodies[0], "peer")
        assert one.objects.counts["reads"] == two.objects.counts["reads"] == 0
        two.kill()
        for index, body in bodies.items():
            answer, told = one.ask("GET", shard("job", index, 10), headers=JOB)
            assert (told, answer.getheader("Everstep-Source")) == (body, "store")
            assert answer.getheader("Shard-Meta") == shard_meta(digest(body))
        assert one.objects.counts["read_bytes"] == LARGE + len(b"metadata")
        assert one.store.usage.used == 0
        assert f'everstep_tier_sent_bytes_total{{source="store"}} {LARGE + 8}' in one.ask("GET", "/metrics")[1].decode()


def test_a_truncated_or_changed_object_is_never_sent_whole(shm: Path, url: str) -> None:
    with nodes(shm, "n1", url=url) as (one,):
        durable(one, {0: b"shard", 1: b"metadata"})
        one.objects.put(shard_key("job", 0, 10, 1), b"shred")
        one.objects.put(shard_key("job", 1, 10, 1), b"meta")
        assert one.ask("GET", shard("job", 0, 10), headers=JOB)[0].status == 502
        assert one.ask("GET", shard("job", 1, 10), headers=JOB)[0].status == 503


def test_an_outage_of_the_store_is_told_at_once(shm: Path, url: str) -> None:
    with nodes(shm, "n1", url=url) as (one,):
        durable(one, {0: b"shard", 1: b"metadata"})
        assert one.ask("GET", shard("job", 0, 10), headers=JOB)[1] == b"shard"
        one.objects.is_out = True
        assert one.ask("GET", shard("job", 0, 10), headers=JOB)[0].status in {404, 503}


def test_the_save_that_is_asked_for_is_the_one_that_is_given(shm: Path, url: str) -> None:
    with nodes(shm, "n1", "n2", url=url) as (one, two):
        two.seal("job", 0, 10, b"of the first", save="s1")
        two.seal("job", 1, 10, b"metadata", save="s1", kind=ShardKind.METADATA)
        two.seal("job", 0, 10, b"of the second", save="s2")
        for node in (one, two):
            for save, body in (("s1", b"of the first"), ("s2", b"of the second")):
                answer, told = node.ask("GET", f"{shard('job', 0, 10)}?save={save}", headers=JOB)
                assert (told, answer.getheader("Everstep-Save")) == (body, save)
            assert node.ask("GET", f"{shard('job', 0, 10)}?save=s3", headers=JOB)[0].status == 404
        assert one.ask("GET", shard("job", 0, 10), headers=JOB)[1] == b"of the first"  # the save that is complete


# ------------------------------------------------------------ replicas that are pushed


HALVES = "push=ab, stream={}/2, bytes=65536"


def pushed(node: Node, seal: Seal, body: bytes, stripes: str | None = None, **changes):
    headers = {**PEER, "Everstep-Seal": json.dumps({**seal.to_wire(), **changes})}
    headers |= {"Everstep-Stripes": stripes} if stripes else {}
    with closing(http.client.HTTPConnection(node.address, PORT, timeout=30)) as client:
        client.request("POST", shard("job", seal.index, seal.step), body, headers)
        answer = client.getresponse()
        return answer, answer.read()


@pytest.fixture
def original(shm: Path):
    with nodes(shm, "n1", "n2") as (one, two):
        body = ZIP + os.urandom(99_996)
        yield one.seal("job", 0, 10, body), body, two


def test_a_replica_exists_when_all_its_streams_have_come_and_says_what_its_original_does(original) -> None:
    seal, body, node = original
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(pushed, node, seal, body[65_536:], HALVES.format(1))
        assert node.store.seals() == ()
        assert pushed(node, seal, body[:65_536], HALVES.format(0))[0].status == second.result()[0].status == 201
    (held,) = node.store.seals()
    assert (held.digest, held.written_at, held.origin, held.save) == (seal.digest, seal.written_at, "n1", "s1")
    assert held.stamp != seal.stamp
    assert node.ask("GET", f"{shard('job', 0, 10)}?scope=local", headers=JOB)[1] == body


def test_a_replica_that_is_there_is_not_taken_twice(original) -> None:
    seal, body, node = original
    assert pushed(node, seal, body)[0].status == 201
    used = node.store.usage
    assert pushed(node, seal, body[:65_536], HALVES.format(0))[0].status == 201
    assert node.store.usage == used


def test_a_replica_with_other_bytes_is_refused_and_given_back(original) -> None:
    seal, body, node = original
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pushed, node, seal, body[-65_536:], HALVES.format(0))
        assert pushed(node, seal, body[65_536:], HALVES.format(1))[0].status == first.result()[0].status == 422
    assert node.store.seals() == ()
    assert node.store.usage.spare == node.store.usage.used
    assert pushed(node, seal, body)[0].status == 201


def test_a_stream_whose_other_one_never_comes_is_refused_with_words(original) -> None:
    seal, body, node = original
    node.arrivals._patience_s = 0.05
    answer, told = pushed(node, seal, body[:65_536], HALVES.format(0))
    assert (answer.status, b"no byte of another stream" in told) == (503, True)
    assert node.store.usage.spare == node.store.usage.used


def test_a_torn_stream_takes_the_whole_replica_with_it(original) -> None:
    seal, body, node = original
    client = http.client.HTTPConnection(node.address, PORT, timeout=20)
    client.putrequest("POST", shard("job", 0, 10))
    headers = {
        "Everstep-Seal": json.dumps(seal.to_wire()),
        "Content-Length": str(len(body) - 65_536),
        "Everstep-Stripes": HALVES.format(1),
    }
    for name, value in {**PEER, **headers}.items():
        client.putheader(name, value)
    client.endheaders(body[65_536:70_000])
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pushed, node, seal, body[:65_536], HALVES.format(0))
        until(lambda: node.store.usage.used)
        client.close()
        assert first.result()[0].status == 503
    until(lambda: node.store.usage.spare == node.store.usage.used)
    assert node.store.seals() == ()
    assert pushed(node, seal, body)[0].status == 201


@pytest.mark.parametrize("stripes", ["push=ab, stream=2/2, bytes=65536", "x", "push=ab, stream=0/2, bytes=70000"])
def test_stripes_that_contradict_their_body_or_are_none_are_refused(original, stripes: str) -> None:
    seal, body, node = original
    assert pushed(node, seal, body[:65_536], stripes)[0].status == 400
    assert node.store.usage.used == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 11},
        {"index": 1},
        {"namespace": "ns"},
        {"size": 5},
        {"digest": "x"},
        {"index": -1},
        {"size": "1"},
        {"written_at": "x"},
    ],
)
def test_a_seal_that_contradicts_its_request_is_refused(original, changes) -> None:
    seal, body, node = original
    assert pushed(node, seal, body, None, **changes)[0].status == 400
    assert node.store.seals() == ()


@pytest.mark.parametrize("told", ["", "{", "[]", "null", "1", '"x"'])
def test_a_seal_that_is_none_is_refused(original, told: str) -> None:
    _, body, node = original
    assert node.ask("POST", shard("job", 0, 10), body, {**PEER, "Everstep-Seal": told})[0].status == 400


def test_a_replica_of_metadata_is_never_looked_into(original) -> None:
    _, _, node = original
    body = METADATA
    seal = Seal("job", 0, 12, ShardKind.DATA, len(body), digest(body), "stamp", 5.0, "s1", "n1")
    assert pushed(node, seal, body)[0].status == 201
    assert node.store.seals()[0].kind is ShardKind.DATA
