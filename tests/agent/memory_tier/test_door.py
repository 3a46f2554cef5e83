from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from agent.memory_tier.budget import MIB
from agent.memory_tier.metrics import Sample
from everstep.shards import ShardKind, shard_meta
from everstep.tiers import TierPlan
from tests.agent.memory_tier.doors import (
    JOB,
    METADATA,
    PEER,
    PORT,
    SECRET,
    TOKEN,
    ZIP,
    Node,
    digest,
    meta,
    nodes,
    own_address,
    planned,
    shard,
    until,
)


@pytest.fixture
def node(shm: Path):
    with nodes(shm, "n1") as (one,):
        yield one


# ------------------------------------------------------------ AWS's protocol


def test_a_namespace_is_asked_for_made_and_deleted_as_awss_package_does(node: Node) -> None:
    assert node.ask("GET", "/v1/cp/namespaces/ns")[0].status == 404
    assert node.ask("POST", "/v1/cp/namespaces/ns?num_ranks=3&steps_retained=5", b"")[0].status == 201
    assert node.told("/v1/cp/namespaces/ns") == {"namespace": "ns", "num_ranks": 3, "steps_to_retain_per_rank": 5}
    bodies = node.save("ns", 2, 10)
    assert len(bodies) == 3
    assert node.ask("DELETE", "/v1/cp/namespaces/ns")[0].status == 200
    assert node.ask("GET", "/v1/cp/namespaces/ns")[0].status == 404
    assert node.ask("DELETE", "/v1/cp/namespaces/ns")[0].status == 404
    assert node.ask("GET", shard("ns", 0, 10))[0].status == 404
    assert node.told("/v1/cp/checkpoints/ns/latest?limit=3") == []


@pytest.mark.parametrize("query", ["", "?num_ranks=0", "?num_ranks=-1", "?num_ranks=x", "?num_ranks=3&steps_retained=0"])
def test_a_namespace_that_cannot_be_is_refused_in_words(node: Node, query: str) -> None:
    answer, body = node.ask("POST", f"/v1/cp/namespaces/ns{query}", b"")
    assert answer.status == 400
    assert json.loads(body)["error"]


def test_a_shard_comes_back_with_its_bytes_its_length_and_its_header_unchanged(node: Node) -> None:
    body = ZIP + os.urandom(70_000)
    node.post("ns", 0, 10, body)
    for method in ("GET", "HEAD"):
        answer, told = node.ask(method, shard("ns", 0, 10))
        assert answer.status == 200
        assert told == (body if method == "GET" else b"")
        assert answer.getheader("Content-Length") == str(len(body))
        assert answer.getheader("Shard-Meta") == meta(body)
        assert answer.getheader("Everstep-Digest") == digest(body)
        assert answer.getheader("Everstep-Kind") == "data"
        assert answer.getheader("Everstep-Source") == "memory"
        assert answer.getheader("Content-Encoding") is None


def test_a_shard_without_the_header_gets_one_that_fits(node: Node) -> None:
    answer, _ = node.ask("POST", shard("ns", 0, 10), b"abc")
    assert answer.status == 201
    assert node.ask("GET", shard("ns", 0, 10))[0].getheader("Shard-Meta") == shard_meta(digest(b"abc"))


def test_a_header_of_another_algorithm_is_kept_and_not_judged(node: Node) -> None:
    answer, _ = node.ask("POST", shard("ns", 0, 10), b"abc", {"Shard-Meta": '{"checksum": "x", "algorithm": "crc32"}'})
    assert answer.status == 201
    assert node.ask("GET", shard("ns", 0, 10))[0].getheader("Shard-Meta") == '{"checksum": "x", "algorithm": "crc32"}'


def test_bytes_that_are_not_those_of_their_header_are_refused_and_leave_what_was_there(node: Node) -> None:
    node.post("ns", 0, 10, b"good")
    used = node.store.usage.shards
    answer, told = node.ask("POST", shard("ns", 0, 10), b"evil", {"Shard-Meta": meta(b"good")})
    assert answer.status == 422
    assert "digest" in json.loads(told)["error"]
    assert node.ask("GET", shard("ns", 0, 10))[1] == b"good"
    assert node.store.usage.shards == used


@pytest.mark.parametrize(
    "told",
    [
        "{",
        '{"algorithm": "xxh3_128"}',
        '{"algorithm": "xxh3_128", "checksum": "!!"}',
        '{"algorithm": "xxh3_128", "checksum": "AAAA"}',
    ],
)
def test_a_header_that_cannot_be_read_is_refused(node: Node, told: str) -> None:
    assert node.ask("POST", shard("ns", 0, 10), b"abc", {"Shard-Meta": told})[0].status == 400
    assert node.ask("GET", shard("ns", 0, 10))[0].status == 404


def test_an_empty_shard_is_a_shard(node: Node) -> None:
    node.post("ns", 0, 10, b"")
    answer, told = node.ask("GET", shard("ns", 0, 10))
    assert (answer.status, told, answer.getheader("Shard-Meta")) == (200, b"", meta(b""))


def test_what_is_not_there_is_404_and_a_drop_is_found(node: Node) -> None:
    assert node.ask("GET", shard("ns", 0, 10))[0].status == 404
    assert node.ask("HEAD", shard("ns", 0, 10))[0].status == 404
    assert node.ask("DELETE", shard("ns", 0, 10))[0].status == 404
    node.post("ns", 0, 10, b"abc")
    assert node.ask("DELETE", shard("ns", 0, 10))[0].status == 200
    assert node.ask("GET", shard("ns", 0, 10))[0].status == 404


def test_a_reset_of_everything_is_refused_in_words(node: Node) -> None:
    node.post("ns", 0, 10, b"abc")
    answer, told = node.ask("POST", "/v1/cp/cluster/reset", b"")
    assert answer.status == 403
    assert "DELETE /v1/cp/namespaces" in json.loads(told)["error"]
    assert node.ask("GET", shard("ns", 0, 10))[1] == b"abc"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/cp/checkpoints/ns/0",
        "/v1/cp/checkpoints/ns/0/1/2",
        "/v1/cp/cluster",
        "/v2/cp/namespaces/ns",
        "/v1/tier",
        "/metrics/x",
    ],
)
def test_other_paths_are_not_there(node: Node, path: str) -> None:
    assert node.ask("GET", path)[0].status in {400, 404}


@pytest.mark.parametrize("name", ["-1", "01", "+1", "1.0", "x", "%31x", "9999999999999999999"])
def test_a_number_is_written_in_one_way_only(node: Node, name: str) -> None:
    assert node.ask("POST", f"/v1/cp/checkpoints/ns/{name}/10", b"abc")[0].status == 400
    assert node.ask("POST", f"/v1/cp/checkpoints/ns/0/{name}", b"abc")[0].status == 400


@pytest.mark.parametrize("name", ["%2e%2e", "a%2Fb", "a%20b", ".hidden", "a" * 201, "%00"])
def test_a_namespace_that_could_leave_its_folder_is_refused(node: Node, name: str) -> None:
    assert node.ask("POST", f"/v1/cp/checkpoints/{name}/0/10", b"abc")[0].status == 400
    assert node.ask("POST", f"/v1/cp/namespaces/{name}?num_ranks=2", b"")[0].status == 400


def test_a_method_that_is_not_for_a_path_is_told_those_that_are(node: Node) -> None:
    answer, _ = node.ask("PUT", shard("ns", 0, 10), b"abc")
    assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD, POST, DELETE")


# ------------------------------------------------------------ which steps are told


def test_only_steps_with_all_their_shards_are_the_latest(node: Node) -> None:
    for step in (10, 20, 30):
        node.save("ns", 2, step)
    assert node.told("/v1/cp/checkpoints/ns/latest?limit=3") == [30, 20, 10]
    node.store.drop("ns", step=30, index=1, why="lost")
    node.store.drop("ns", step=20, index=2, why="lost")
    assert node.told("/v1/cp/checkpoints/ns/latest?limit=3") == [10]
    node.save("ns", 2, 40, index=0)
    assert node.told("/v1/cp/checkpoints/ns/latest") == [10]


def test_so_many_steps_are_told_as_are_asked_for(node: Node) -> None:
    for step in range(5):
        node.save("ns", 1, step)
    assert node.told("/v1/cp/checkpoints/ns/latest") == [4, 3, 2]
    assert node.told("/v1/cp/checkpoints/ns/latest?limit=1") == [4]
    assert node.told("/v1/cp/checkpoints/ns/latest?limit=100") == [4, 3, 2, 1, 0]
    assert node.ask("GET", "/v1/cp/checkpoints/ns/latest?limit=x")[0].status == 400


def test_a_step_that_is_saved_again_by_a_larger_world_is_never_a_mixture(node: Node) -> None:
    node.ask("POST", "/v1/cp/namespaces/ns?num_ranks=3", b"")
    before = node.save("ns", 2, 10)
    for index in range(4):
        node.save("ns", 4, 10, index=index)
        assert node.told("/v1/cp/checkpoints/ns/latest") == [], f"after shard {index}"
    after = node.save("ns", 4, 10, index=4)
    assert node.told("/v1/cp/checkpoints/ns/latest") == [10]
    assert node.told("/v1/tier/steps/ns/10")["world_size"] == 4
    assert node.ask("GET", shard("ns", 4, 10))[1] == after[4] != before[2]


def test_a_step_that_is_saved_again_by_a_smaller_world_is_that_worlds(node: Node) -> None:
    node.save("ns", 4, 10)
    node.save("ns", 2, 10, index=0)
    assert node.told("/v1/cp/checkpoints/ns/latest") == []
    node.save("ns", 2, 10, index=1)
    node.save("ns", 2, 10, index=2)
    assert node.told("/v1/tier/steps/ns/10")["world_size"] == 2


def test_a_body_without_marks_is_metadata_where_the_namespace_says_so(node: Node) -> None:
    node.ask("POST", "/v1/cp/namespaces/ns?num_ranks=2", b"")
    node.post("ns", 0, 10, b"shard")
    node.post("ns", 1, 10, b'{"json": true}')
    assert node.told("/v1/cp/checkpoints/ns/latest") == [10]
    assert [seal.kind for seal in sorted(node.store.seals("ns"), key=lambda one: one.index)] == [ShardKind.DATA, ShardKind.METADATA]


def test_a_posted_shard_is_there_while_its_next_version_arrives(node: Node) -> None:
    node.post("ns", 0, 10, b"first")
    with socket.create_connection((node.address, PORT), timeout=20) as line:
        line.sendall(f"POST {shard('ns', 0, 10)} HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nsec".encode())
        assert node.ask("GET", shard("ns", 0, 10))[1] == b"first"
        line.sendall(b"ond")
        assert line.recv(1000).startswith(b"HTTP/1.1 201")
    assert node.ask("GET", shard("ns", 0, 10))[1] == b"second"
    assert node.store.usage.shards == 1


def test_a_torn_body_leaves_no_shard_and_no_memory_behind(node: Node) -> None:
    node.post("ns", 0, 1, b"x" * 100_000)
    node.store.drop("ns", why="only its segment is wanted")
    before = node.store.usage
    with socket.create_connection((node.address, PORT), timeout=20) as line:
        line.sendall(f"POST {shard('ns', 0, 10)} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nonly this".encode())
        until(lambda: node.store.usage.spare < before.spare)
    until(lambda: node.store.usage == before)
    assert node.store.usage == before
    assert node.store.seals() == ()


# ------------------------------------------------------------ ranges


@pytest.mark.parametrize(
    "asked, start, end", [("0-0", 0, 1), ("5-9", 5, 10), ("5-", 5, 1000), ("-7", 993, 1000), ("990-5000", 990, 1000)]
)
def test_a_range_is_a_part_of_the_shard(node: Node, asked: str, start: int, end: int) -> None:
    body = os.urandom(1000)
    node.post("ns", 0, 10, body)
    answer, told = node.ask("GET", shard("ns", 0, 10), headers={"Range": f"bytes={asked}"})
    assert (answer.status, told) == (206, body[start:end])
    assert answer.getheader("Content-Range") == f"bytes {start}-{end - 1}/1000"
    assert answer.getheader("Everstep-Digest") == digest(body)


def test_a_range_without_a_byte_is_416_and_says_the_size(node: Node) -> None:
    node.post("ns", 0, 10, b"abc")
    answer, _ = node.ask("GET", shard("ns", 0, 10), headers={"Range": "bytes=3-"})
    assert (answer.status, answer.getheader("Content-Range")) == (416, "bytes */3")


# ------------------------------------------------------------ room


def test_a_shard_without_room_is_refused_in_words_and_the_door_goes_on(node: Node) -> None:
    for number in range(3):
        node.seal("job", number, 10, b"x" * (80 * MIB))
    answer, told = node.ask("POST", shard("ns", 0, 10), b"y" * (30 * MIB))
    assert answer.status == 507
    assert "InstanceMemoryAllocationPercentage" in json.loads(told)["error"]
    node.post("ns", 0, 10, b"small")
    assert "everstep_tier_refusals_total 1\n" in node.ask("GET", "/metrics")[1].decode()


def test_a_shard_larger_than_the_tier_is_refused_before_it_is_sent(node: Node) -> None:
    with socket.create_connection((node.address, PORT), timeout=20) as line:
        line.sendall(
            f"POST {shard('ns', 0, 10)} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert line.recv(1000).startswith(b"HTTP/1.1 413")


# ------------------------------------------------------------ who may


@pytest.fixture
def two_jobs(shm: Path):
    plan = TierPlan(1, allocation_percent=20, secret=SECRET, namespaces=(planned("job"), planned("other", "token-of-another")))
    with nodes(shm, "n1", plan=plan) as (one,):
        one.seal("job", 0, 10, b"mine")
        one.seal("job", 1, 10, b"mine too", kind=ShardKind.METADATA)
        yield one


CLOSED = [
    ("GET", shard("job", 0, 10)),
    ("HEAD", shard("job", 0, 10)),
    ("POST", shard("job", 0, 10)),
    ("DELETE", shard("job", 0, 10)),
    ("GET", "/v1/cp/checkpoints/job/latest"),
    ("GET", "/v1/cp/namespaces/job"),
    ("POST", "/v1/cp/namespaces/job?num_ranks=2"),
    ("DELETE", "/v1/cp/namespaces/job"),
    ("GET", "/v1/tier/inventory?namespace=job"),
    ("GET", "/v1/tier/steps/job"),
    ("GET", "/v1/tier/steps/job/10"),
]


@pytest.mark.parametrize("method, path", CLOSED)
@pytest.mark.parametrize("shown", [{}, {"Authorization": "Bearer token-of-another"}, {"Authorization": "Bearer "}])
def test_a_jobs_namespace_is_closed_without_its_token(two_jobs: Node, method: str, path: str, shown: dict[str, str]) -> None:
    answer, told = two_jobs.ask(method, path, b"evil" if method == "POST" else None, shown)
    assert answer.status == 403
    assert TOKEN not in told.decode()
    assert two_jobs.ask("GET", shard("job", 0, 10), headers=JOB)[1] == b"mine"


@pytest.mark.parametrize("path", ["/v1/tier/inventory", "/v1/tier/complete"])
@pytest.mark.parametrize("shown", [{}, JOB])
def test_what_tiers_ask_each_other_is_for_tiers_alone(two_jobs: Node, path: str, shown: dict[str, str]) -> None:
    method = "POST" if path.endswith("complete") else "GET"
    body = b'{"namespace": "job", "step": 1, "save": ""}' if method == "POST" else None
    assert two_jobs.ask(method, path, body, shown)[0].status == 403
    assert two_jobs.ask(method, path, body, PEER)[0].status == 200


def test_a_replica_is_taken_from_peers_alone(two_jobs: Node) -> None:
    seal = two_jobs.seal("job", 0, 20, b"mine")
    told = json.dumps(seal.to_wire())
    for shown in ({}, JOB):
        assert two_jobs.ask("POST", shard("job", 0, 20), b"mine", {**shown, "Everstep-Seal": told})[0].status == 403


def test_a_jobs_own_process_posts_shards_that_name_their_save(two_jobs: Node) -> None:
    for index, body in ((0, b"shard"), (1, METADATA)):
        path = shard("job", index, 20)
        answer, told = two_jobs.ask("POST", path, body, JOB)
        assert answer.status == 400
        assert "Everstep-Save" in json.loads(told)["error"]
        assert two_jobs.ask("POST", path, body, {**JOB, "Everstep-Save": "s2", "Everstep-Durable": "true"})[0].status == 201
    found = two_jobs.told("/v1/tier/steps/job/20", JOB)
    assert (found["save"], found["world_size"]) == ("s2", 1)
    assert all(seal.is_durable for seal in two_jobs.store.seals("job") if seal.step == 20)


def test_a_caller_without_a_token_names_no_save_and_makes_nothing_durable(node: Node) -> None:
    node.post("ns", 0, 10, b"abc", **{"Everstep-Save": "s2", "Everstep-Durable": "true"})
    (seal,) = node.store.seals()
    assert (seal.save, seal.is_durable) == ("", False)


def test_an_open_namespace_is_for_the_node_itself(node: Node) -> None:
    node.post("ns", 0, 10, b"abc")
    own = own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")
    with socket.create_connection((node.address, PORT), timeout=20, source_address=(own, 0)) as line:
        line.sendall(f"GET {shard('ns', 0, 10)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert line.recv(1000).startswith(b"HTTP/1.1 403")


def test_metrics_and_health_need_no_token(shm: Path) -> None:
    lag = Sample("everstep_age_of_last_durable_step_seconds", 1.5, {"namespace": 'a"b'})
    with nodes(shm, "n1", gauges=lambda: (lag,)) as (node,):
        node.post("ns", 0, 10, b"abc")
        node.ask("GET", shard("ns", 0, 10))
        node.ask("GET", shard("ns", 1, 10))
        assert node.told("/healthz") == {"node": "n1", "status": "ok"}
        answer, told = node.ask("GET", "/metrics")
        assert answer.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
        lines = told.decode().splitlines()
        for line in (
            'everstep_age_of_last_durable_step_seconds{namespace="a\\"b"} 1.5',
            'everstep_tier_requests_total{route="shard",status="404"} 1',
            'everstep_tier_received_bytes_total{source="client"} 3',
            'everstep_tier_sent_bytes_total{source="memory"} 3',
            "everstep_tier_shards 1",
            "everstep_tier_connections 1",
            f"everstep_tier_allocated_bytes {256 * MIB}",
        ):
            assert line in lines
        assert TOKEN not in told.decode()
        assert SECRET not in told.decode()


class Client:
    """One of several at the same shard, each in a thread and on a connection of its own."""

    size, seen, mistakes = 3 * MIB, Counter(), []

    def __init__(self, node: Node, ended: threading.Event, method: str, letter: bytes = b"", **headers: str) -> None:
        self._line = HTTPConnection(node.address, PORT, timeout=30)
        self._asked = method, shard("ns", 0, 10), letter * self.size or None, headers
        self._ended = ended
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._ask(*self._asked)
        except (OSError, HTTPException) as error:
            self.mistakes.append(f"a connection broke: {error!r}")
        finally:
            self._line.close()

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
        self._line.request(method, path, body, headers)
        answer = self._line.getresponse()
        told = answer.read()
        self.seen[method, answer.status] += 1
        if method == "GET" and answer.status != 404 and (len(set(told)) != 1 or len(told) not in {self.size, 1000}):
            self.mistakes.append(f"{answer.status} with {len(told)} bytes of {len(set(told))} kinds")
        if method == "DELETE":
            self._ended.wait(0.05)


def test_readers_never_see_a_mixture_while_a_shard_is_written_over_and_dropped(node: Node) -> None:
    ended = threading.Event()
    writers = [Client(node, ended, "POST", letter) for letter in (b"a", b"b")]
    readers = [Client(node, ended, "GET"), Client(node, ended, "GET"), Client(node, ended, "GET", Range="bytes=-1000")]
    clients = [*writers, *readers, Client(node, ended, "DELETE")]
    ended.wait(2.0)
    ended.set()
    for client in clients:
        client.thread.join(60)
    assert Client.mistakes == []
    for expected in (("POST", 201), ("GET", 200), ("GET", 206), ("DELETE", 200)):
        assert Client.seen[expected] > 0, Client.seen
    usage = node.store.usage
    assert usage.used == usage.spare + usage.shards * (Client.size + 4096)


def test_what_is_posted_after_the_clock_was_set_back_takes_the_place_of_what_was_there(shm: Path) -> None:
    for at, body in ((2_000_000_000.0, ZIP + b"of before"), (1_000_000_000.0, ZIP + b"of after")):
        with nodes(shm, "n1", now=lambda at=at: at) as (node,):
            for seal in node.store.unverified():
                assert node.store.verify(seal)
            node.post("ns", 0, 10, body)
            assert node.ask("GET", shard("ns", 0, 10))[1] == body
