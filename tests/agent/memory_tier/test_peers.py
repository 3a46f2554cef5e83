"""The client of other nodes' doors, against real doors and against ones that break in every way: whatever happens is one kind of error, and ends."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from agent.memory_tier import peers as peers_module
from agent.memory_tier.door import Door
from agent.memory_tier.line import Broken, Line
from agent.memory_tier.peers import CUT_FROM, PeerAway, PeerRefused, Peers, parts
from everstep.shards import Seal, ShardKind
from everstep.tiers import TierPeer, TierPlan
from tests.agent.memory_tier import doors

MIB = 1 << 20


@pytest.fixture
def pair(shm):
    with doors.nodes(shm, "a", "b", allocated=512 * MIB) as made:
        yield made


def held(node, seal):
    with node.store.read(seal) as reading:
        return bytes(reading.view)


def push(a, b, seal):
    with a.store.read(seal) as reading:
        a.peers.push(peer_of(a, b), seal, reading.view)


def peer_of(a, b):
    return next(peer for peer in a.peers.all() if peer.node == b.name)


# ------------------------------------------------------------ against real doors


@pytest.mark.parametrize("nbytes", [0, 1, 70_000, CUT_FROM, CUT_FROM + 12_345])
def test_a_pushed_replica_is_the_shard_byte_for_byte_and_says_where_it_comes_from(pair, nbytes):
    a, b = pair
    body = os.urandom(nbytes)
    seal = a.seal("job", 0, 10, body)
    push(a, b, seal)
    there = b.store.find("job", 0, 10)
    assert held(b, there) == body
    assert (there.digest, there.save, there.origin, there.written_at) == (seal.digest, "s1", "a", seal.written_at)
    assert there.stamp != seal.stamp
    assert a.peers.pushed_bytes == nbytes


@pytest.fixture
def small_stripes(monkeypatch):
    monkeypatch.setattr(peers_module, "STRIPE", MIB)


def test_a_replica_in_many_stripes_is_the_shard_byte_for_byte_and_each_is_sent_once(pair, small_stripes):
    a, b = pair
    body = os.urandom(CUT_FROM + 12_345)
    seal = a.seal("job", 0, 10, body)
    push(a, b, seal)
    assert held(b, b.store.find("job", 0, 10)) == body
    assert b.counts.value("everstep_tier_received_bytes_total", source="peer") == len(body) == a.peers.pushed_bytes


def test_of_a_replica_that_is_refused_no_stripe_is_sent(shm, small_stripes):
    with doors.nodes(shm, "a", allocated=256 * MIB) as [a], doors.nodes(shm, "small", allocated=2 * MIB) as [small]:
        doors.tell([a, small])
        seal = a.seal("job", 0, 10, os.urandom(CUT_FROM))
        with pytest.raises(PeerRefused, match="InstanceMemoryAllocationPercentage"):
            push(a, small, seal)
        asked = small.counts.value("everstep_tier_received_bytes_total", source="peer")
        assert (asked, a.peers.pushed_bytes) == (0, 0)


def test_pushing_what_is_there_already_costs_no_bytes(pair):
    a, b = pair
    seal = a.seal("job", 0, 10, os.urandom(CUT_FROM))
    push(a, b, seal)
    received = b.counts.value("everstep_tier_received_bytes_total", source="peer")
    push(a, b, seal)
    assert b.counts.value("everstep_tier_received_bytes_total", source="peer") == received == CUT_FROM


def test_ranges_and_whole_shards_are_fetched_into_their_place(pair):
    a, b = pair
    body = os.urandom(CUT_FROM + 4097)
    seal = b.seal("job", 3, 10, body)
    whole = bytearray(len(body))
    a.peers.fetch(peer_of(a, b), seal, memoryview(whole))
    assert whole == body
    some = bytearray(1000)
    a.peers.fetch(peer_of(a, b), seal, memoryview(some), start=CUT_FROM - 500)
    assert some == body[CUT_FROM - 500 : CUT_FROM + 500]


def test_bytes_of_another_save_are_not_taken_for_the_ones_asked_for(pair):
    a, b = pair
    old = b.seal("job", 0, 10, b"old" * 100, save="s1")
    b.store.drop("job", why="test")
    b.seal("job", 0, 10, b"new" * 100, save="s2")
    with pytest.raises(PeerRefused):
        a.peers.fetch(peer_of(a, b), old, memoryview(bytearray(300)))


def test_a_peer_without_room_says_so_before_the_body_is_sent(shm):
    with doors.nodes(shm, "a", allocated=256 * MIB) as [a], doors.nodes(shm, "small", allocated=2 * MIB) as [small]:
        doors.tell([a, small])
        seal = a.seal("job", 0, 10, os.urandom(8 * MIB))
        with pytest.raises(PeerRefused) as refused:
            push(a, small, seal)
        assert refused.value.status in {413, 503, 507}
        assert "InstanceMemoryAllocationPercentage" in str(refused.value)
        assert a.peers.pushed_bytes == 0
        assert small.store.seals() == ()


def test_a_push_of_bytes_that_are_not_those_of_the_seal_is_refused_and_leaves_nothing(pair):
    a, b = pair
    seal = a.seal("job", 0, 10, os.urandom(CUT_FROM))
    with pytest.raises(PeerRefused):
        a.peers.push(peer_of(a, b), seal, memoryview(bytes(CUT_FROM)))
    assert b.store.seals() == ()
    push(a, b, seal)
    assert b.store.find("job", 0, 10).digest == seal.digest


def test_an_inventory_is_what_a_peer_holds_of_one_namespace_or_of_all(pair):
    a, b = pair
    seals = {b.seal("job", 0, 10, b"x"), b.seal("job", 1, 10, b"y"), b.seal("other", 0, 10, b"z")}
    assert set(a.peers.inventory(peer_of(a, b))) == seals
    assert {seal.namespace for seal in a.peers.inventory(peer_of(a, b), "job")} == {"job"}


def test_a_peer_that_was_restarted_is_asked_again_on_a_new_connection(pair):
    a, b = pair
    a.peers.inventory(peer_of(a, b))
    b.door.stop()
    with pytest.raises(PeerAway):
        a.peers.inventory(peer_of(a, b))
    b.door = Door(b.behind, address=b.address, port=doors.PORT, clock=time.monotonic)
    b.door.start()
    assert a.peers.inventory(peer_of(a, b)) == ()


def test_a_node_that_does_not_know_the_secret_gets_nothing(pair):
    a, b = pair
    b.seal("job", 0, 10, b"x")
    stranger = Peers(port=doors.PORT)
    stranger.know(TierPlan(1, secret="a guess", peers=(peer_of(a, b),)))
    with pytest.raises(PeerRefused) as refused:
        stranger.inventory(peer_of(a, b), "job")
    assert refused.value.status in {401, 403}
    stranger.close()


# ------------------------------------------------------------ against broken ones


SEAL = Seal("ns", 0, 1, ShardKind.DATA, 2 * MIB, "0" * 32, "stamp", 0.0)
SILENCE_S = 0.3


@contextmanager
def broken(serve):
    """Peers of one peer, whose connections are handled by ``serve``, one after the other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                serve(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    peers = Peers(port=listener.getsockname()[1], dial=lambda address, port: Line(address, port, connect_s=1.0, stall_s=SILENCE_S))
    peer = TierPeer("b", "127.0.0.1")
    peers.know(TierPlan(1, peers=(peer,)))
    yield peers, peer
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    peers.close()


def answers(*texts):
    def serve(connection):
        connection.recv(65536)
        for text in texts:
            connection.sendall(text)

    return serve


def hangs(connection):
    connection.recv(65536)
    connection.settimeout(5)
    while connection.recv(65536):
        pass


BROKEN = {
    "closes at once": lambda _: None,
    "never answers": hangs,
    "speaks something else": answers(b"SSH-2.0-x\r\n\r\n"),
    "has no end of head": answers(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000),
    "answers in chunks": answers(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "has a negative length": answers(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
    "stops in the body": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"),
    "is endless": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n"),
    "is no JSON": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"),
    "is other JSON": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n", b'{"seals": "x"}'),
    "lacks members": answers(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n", b'{"seals": [{}]}'),
    "refuses": answers(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_an_inventory_of_a_peer_that_breaks_fails_in_one_way_and_in_time(how):
    with broken(BROKEN[how]) as (peers, peer), pytest.raises(PeerAway):
        peers.inventory(peer)


@pytest.mark.parametrize("how", BROKEN)
def test_a_push_to_a_peer_that_breaks_fails_in_one_way_and_in_time(how):
    with broken(BROKEN[how]) as (peers, peer), pytest.raises(PeerAway):
        peers.push(peer, SEAL, memoryview(bytes(SEAL.size)))


@pytest.mark.parametrize("how", BROKEN)
def test_a_fetch_from_a_peer_that_breaks_fails_in_one_way_and_in_time(how):
    with broken(BROKEN[how]) as (peers, peer), pytest.raises(PeerAway):
        peers.fetch(peer, SEAL, memoryview(bytearray(SEAL.size)))


def test_nobody_at_an_address_is_a_peer_that_is_away():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    peers = Peers(port=port)
    peer = TierPeer("b", "127.0.0.1")
    peers.know(TierPlan(1, peers=(peer,)))
    with pytest.raises(PeerAway, match=r"node b at 127\.0\.0\.1"):
        peers.inventory(peer)
    peers.close()


def test_a_line_break_in_a_header_never_reaches_the_wire():
    with broken(hangs) as (peers, peer):
        line = peers._line(peer)[0]
        with pytest.raises(ValueError, match="line break"):
            line.ask("GET", "/", {"X": "a\r\nY: b"})
        with pytest.raises(Broken):
            line.read(1)
        line.close()


# ------------------------------------------------------------ parts


@pytest.mark.parametrize("nbytes", [0, 1, 4096, CUT_FROM - 1, CUT_FROM, CUT_FROM + 1, 3 * CUT_FROM + 777])
def test_parts_cover_everything_once_and_are_cut_at_pages(nbytes):
    spans = parts(nbytes)
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == nbytes
    assert all(start % 4096 == 0 for start, _ in spans)
    assert len(spans) == (2 if nbytes >= CUT_FROM else 1)
