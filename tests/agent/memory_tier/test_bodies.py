"""Bodies through real processes: their bytes, and what they cost in memory besides the segments that they end in."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
import xxhash

from everstep.shards import PORT, shard_meta
from tests.checkpoint.tiers import TOKEN, Node, memory_tiers, planned, until

MIB = 1 << 20
BLOCK = 4 * MIB
JOB = {"Authorization": f"Bearer {TOKEN}"}
PATH = "/v1/cp/checkpoints/ns/0/10"


def blocks(size: int, seed: int = 7) -> Iterator[memoryview]:
    """So many bytes, each block another; nobody holds them all."""
    block = bytearray(xxhash.xxh3_128_digest(bytes([seed])) * (BLOCK // 16))
    for number in itertools.count():
        if not size:
            return
        block[:8] = number.to_bytes(8, "little")
        yield memoryview(block)[: min(size, BLOCK)]
        size -= min(size, BLOCK)


def digest_of(size: int, skipped: int = 0) -> str:
    digest = xxhash.xxh3_128()
    for block in itertools.islice(blocks(size), skipped, None):
        digest.update(block)
    return digest.hexdigest()


def post(node: Node, size: int) -> None:
    client = HTTPConnection(node.address, PORT, timeout=120)
    meta = shard_meta(digest_of(size))
    client.request("POST", PATH, blocks(size), {**JOB, "Everstep-Save": "s1", "Shard-Meta": meta, "Content-Length": str(size)})
    answer = client.getresponse()
    assert answer.status == 201, answer.read()
    answer.read()
    client.close()


def get(node: Node, **headers: str) -> tuple[int, str, str | None]:
    """Size, digest, and where it came from."""
    client = HTTPConnection(node.address, PORT, timeout=120)
    client.request("GET", PATH, headers={**JOB, **headers})
    answer = client.getresponse()
    assert answer.status in {200, 206}, answer.read()
    digest, size, room = xxhash.xxh3_128(), 0, memoryview(bytearray(BLOCK))
    while received := answer.readinto(room):
        digest.update(room[:received])
        size += received
    client.close()
    return size, digest.hexdigest(), answer.getheader("Everstep-Source")


def anonymous(pid: int) -> int:
    """Bytes of a process that are its own and no file's: segments are files of shared memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


@contextlib.contextmanager
def growing_less_than(most: int, *nodes: Node) -> Iterator[None]:
    """Looks all the time, so that what is given back in the end is seen too."""
    before = {node: anonymous(node.pid) for node in nodes}
    peak = dict(before)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.005):
            for node in nodes:
                peak[node] = max(peak[node], anonymous(node.pid))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
    grown = {node.name: (peak[node] - before[node]) / MIB for node in nodes}
    print("anonymous memory grew by MiB:", grown)
    assert max(grown.values()) < most / MIB, grown


def through_the_door(tmp_path: Path, size: int, memory_mib: int) -> None:
    with memory_tiers(tmp_path, 2, memory_mib=memory_mib, namespaces=[planned(replicas=1)]) as (one, two):
        for node in (one, two):
            client = HTTPConnection(node.address, PORT, timeout=20)
            client.request("GET", "/healthz")
            client.getresponse().read()
            client.close()
        digest = digest_of(size)
        with growing_less_than(8 * MIB, one, two):
            post(one, size)
            assert get(one) == (size, digest, "memory")
            assert get(two) == (size, digest, "peer")
            late = (size // BLOCK - 1) * BLOCK
            assert get(two, Range=f"bytes={late}-") == (size - late, digest_of(size, size // BLOCK - 1), "peer")


def test_a_body_is_held_once_wherever_it_goes(tmp_path: Path) -> None:
    through_the_door(tmp_path, 64 * MIB + 12_345, 1024)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_body_of_more_than_2_gib_is_held_once_wherever_it_goes(tmp_path: Path) -> None:
    through_the_door(tmp_path, (5 << 29) + 12_345, 14 * 1024)


def test_a_replica_in_parts_is_held_once_on_both_nodes(tmp_path: Path) -> None:
    with memory_tiers(tmp_path, 2) as (one, two), growing_less_than(8 * MIB, one, two):
        post(one, 64 * MIB)
        until(lambda: len(inventory(two)) == 1, "the replica")
        assert get(two) == (64 * MIB, digest_of(64 * MIB), "memory")


def test_one_tier_is_killed_and_its_steps_are_had_through_the_other(tmp_path: Path) -> None:
    with memory_tiers(tmp_path, 2) as (one, two):
        for step, body in ((0, b"a shard"), (1, b"\x80 its metadata")):
            told(one, "POST", f"/v1/cp/checkpoints/ns/{step}/10", body, {"Everstep-Save": "s1"})
        told(one, "POST", "/v1/cp/checkpoints/ns/0/20", b"of a save that has not ended", {"Everstep-Save": "s2"})
        until(lambda: len(inventory(two)) == 3, "replicas")
        one.kill()
        assert json.loads(told(two, "GET", "/v1/cp/checkpoints/ns/latest?limit=3")) == [10]
        assert told(two, "GET", "/v1/cp/checkpoints/ns/0/10") == b"a shard"
        one.start()
        found = until(lambda: json.loads(told(one, "GET", "/v1/tier/steps/ns"))["steps"], "what was adopted")
        assert [holder["node"] for holder in found[0]["shards"][0]] == [one.name, two.name]


def inventory(node: Node) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(told(node, "GET", "/v1/tier/inventory?namespace=ns"))["seals"]
    return found


def told(node: Node, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    client = HTTPConnection(node.address, PORT, timeout=20)
    client.request(method, path, body, {**JOB, **(headers or {})})
    answer = client.getresponse()
    found = answer.read()
    client.close()
    assert answer.status < 300, found
    return found
