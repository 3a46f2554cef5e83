"""The object store as S3: the same meaning of every call on servers that others wrote, and steps that become durable there, also large ones."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import xxhash

from agent.memory_tier.commit import Durable, shard_key_of
from agent.memory_tier.objects import PART_BYTES, AlreadyThere, NotThere, Objects, StoreAway
from everstep.shards import Manifest, manifest_key
from tests.agent.memory_tier.conftest import shm
from tests.agent.memory_tier.nodes import Clock, Node, content, settle
from tests.clients import object_stores

__all__ = ["shm"]

MIB = 1 << 20
SERVERS = {"moto": object_stores.moto, "seaweedfs": object_stores.seaweedfs}


@pytest.fixture(
    scope="module",
    params=[pytest.param("moto", marks=pytest.mark.clients), pytest.param("seaweedfs", marks=pytest.mark.store)],
)
def server(request, tmp_path_factory):
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def objects(server):
    found = Objects(server.url, server.environ)
    for key in found.list(""):
        found.delete(key)
    return found


@pytest.fixture
def node(server, shm):
    made = Node("a", shm, server.url, time.time, allocated=1200 * MIB, environ=server.environ)
    made.plan()
    yield made
    made.close()


def steps(objects):
    looks = Durable(objects)
    try:
        return looks.steps("ns")
    finally:
        looks.close()


def test_what_is_put_can_be_had_whole_and_in_ranges_also_in_parts(objects):
    for nbytes in (0, 1, 5 * MIB, PART_BYTES + 12345, 3 * PART_BYTES):
        body = os.urandom(nbytes)
        objects.put("ns/rank_0/step_1/checkpoint.pt", memoryview(body))
        assert objects.size("ns/rank_0/step_1/checkpoint.pt") == nbytes
        assert bytes(objects.get_range("ns/rank_0/step_1/checkpoint.pt", 0, nbytes)) == body
        assert (
            bytes(objects.get_range("ns/rank_0/step_1/checkpoint.pt", nbytes // 2, nbytes // 3))
            == (body[nbytes // 2 : nbytes // 2 + nbytes // 3])
        )


def test_of_many_who_create_an_object_exactly_one_does(objects):
    won = []

    def create(name):
        try:
            objects.create("manifest", name.encode())
        except (AlreadyThere, StoreAway):  # S3 answers 409 to creations that run into each other: neither need have won
            return
        won.append(name)

    threads = [threading.Thread(target=create, args=(f"writer-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert objects.look("manifest").decode() == won[0]
    with pytest.raises(AlreadyThere):
        objects.create("manifest", b"late")


def test_what_is_not_there_is_told_apart_from_a_store_that_refuses(objects, server):
    with pytest.raises(NotThere):
        objects.look("nothing")
    with pytest.raises(NotThere):
        objects.get_range("nothing", 0, 10)
    objects.delete("nothing")
    elsewhere = Objects("s3://no-such-bucket/prefix", {**server.environ, "AWS_SECRET_ACCESS_KEY": "a guess"})
    with pytest.raises((StoreAway, NotThere)):
        elsewhere.put("a", b"x")
    assert elsewhere.counts["written_bytes"] == 0


def test_a_listing_of_more_than_a_page_is_whole(objects):
    keys = [f"ns/manifests/{number:020d}.json" for number in range(1100)]
    for key in keys:
        objects.put(key, b"x")
    assert objects.list("ns/manifests/") == tuple(keys)
    assert objects.list("nobody/") == ()
    assert steps(objects) == tuple(range(1100))


def test_a_step_of_two_nodes_becomes_durable_and_is_written_again_later(objects, server, shm):
    clock = Clock()
    nodes = [Node(name, shm, server.url, clock, environ=server.environ) for name in ("a", "b")]
    for save in ("s1", "s2"):
        shards = [content(), content()]
        for index, node in enumerate(nodes):
            node.plan()
            node.save(10, shards[index], index=index, save=save)
        nodes[0].save(10, content(), world=2, save=save)
        settle(clock, *nodes, seconds=20)
        manifest = Manifest.from_json(objects.look(manifest_key("ns", 10)))
        assert manifest.save == save
        assert [one.digest for one in manifest.shards[:2]] == [xxhash.xxh3_128_hexdigest(one) for one in shards]
        clock.now += 10
    for node in nodes:
        node.close()


def test_without_keys_nothing_is_durable_and_the_words_say_why(server, shm):
    clock = Clock()
    node = Node("a", shm, server.url, clock, environ={**server.environ, "S3_ENDPOINT_URL": "http://127.0.0.1:1"})
    node.plan()
    node.save(10, content())
    node.draining.turn()
    assert "127.0.0.1:1" in node.draining.backlog().outage
    assert server.environ["AWS_SECRET_ACCESS_KEY"] not in node.draining.backlog().outage
    node.close()


def test_a_large_shard_goes_in_parts_and_never_lies_in_memory_twice(objects, node, request):
    nbytes = (1024 if "seaweedfs" in request.node.name else 64) * MIB  # moto holds several copies of it in its own memory
    segment = node.store.take("ns", 0, 10, nbytes)
    block = os.urandom(MIB)
    for start in range(0, nbytes, MIB):
        segment.body[start : start + MIB] = block
    node.store.abandon(segment)
    before, peak, ended = _anonymous(), [0], threading.Event()

    def watch():
        while not ended.wait(0.01):
            peak[0] = max(peak[0], _anonymous() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.monotonic()
    node.objects.put("large", segment.body[:nbytes])
    seconds = time.monotonic() - began
    ended.set()
    watcher.join()
    print(f"{nbytes / MIB:.0f} MiB in {seconds:.1f} s; anonymous memory +{peak[0] / MIB:.0f} MiB")
    assert peak[0] < 48 * MIB
    assert objects.size("large") == nbytes
    assert bytes(objects.get_range("large", nbytes - MIB, MIB)) == block


def test_a_store_that_is_killed_while_a_step_goes_there_gets_it_whole_afterwards(objects, node, server, request):
    if "moto" in request.node.name:
        pytest.skip("moto keeps nothing when it is killed")
    body = content(200 * MIB)
    shard = node.save(10, body)
    node.save(10, content(), world=1)
    node.draining.start()
    time.sleep(0.4)
    server.kill()
    _until(lambda: node.draining.backlog().outage)
    assert node.draining.backlog().nbytes > 0
    server.start()
    assert node.draining.wait("ns", 10, 60.0)
    assert bytes(objects.get_range(shard_key_of(shard), 0, shard.size)) == body


def _until(claim):
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024
