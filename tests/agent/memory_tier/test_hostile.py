from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest

from agent.memory_tier.http import Refusal
from agent.memory_tier.http_server import Exchange, Limits, Server
from tests.agent.memory_tier.doors import own_address
from tests.patience import PATIENCE

ADDRESS = "127.0.67.1"
QUICK = Limits(idle_s=1.0, head_s=0.5, stall_s=0.5, linger_s=0.3, most_own=45, most_refused=4)
LARGEST = 64 << 20


class Shelf:
    """Keeps one body, as a door would; what ended is counted, so that tests wait for it."""

    def __init__(self) -> None:
        self.kept = b""
        self.torn = 0
        self.ended = threading.Semaphore(0)

    def serve(self, exchange: Exchange) -> None:
        exchange.route = "/".join(exchange.request.parts)
        if exchange.route == "fails":
            raise ZeroDivisionError
        if exchange.route == "fails-late":
            exchange.begin(HTTPStatus.OK, {}, 10)
            exchange.send(memoryview(b"12345"))
            raise Refusal(HTTPStatus.NOT_FOUND, "the rest is gone")
        if exchange.request.method == "POST":
            if exchange.request.length > LARGEST:
                raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too much")
            body = bytearray(exchange.request.length)
            exchange.receive_into(memoryview(body))
            self.kept = bytes(body)
            exchange.answer(HTTPStatus.OK)
        else:
            exchange.answer(HTTPStatus.OK, self.kept)

    def seen(self, exchange: Exchange) -> None:
        self.torn += exchange.received < exchange.request.length
        self.ended.release()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def server(shelf: Shelf) -> Iterator[Server]:
    one = Server(ADDRESS, 0, serve=shelf.serve, seen=shelf.seen, clock=time.monotonic, limits=QUICK)
    one.start()
    yield one
    one.stop()
    assert one.connections == 0


def connected(server: Server) -> socket.socket:
    return socket.create_connection((ADDRESS, server.port), timeout=20)


def told(server: Server, request: bytes) -> bytes:
    """All that the server says to these bytes until it closes."""
    with connected(server) as line:
        line.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := line.recv(1 << 16):
                answer += chunk
        return answer


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 ")
    return int(answer[9:12])


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20 * PATIENCE
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_session_posts_reads_and_asks_for_heads_on_one_connection(server: Server, shelf: Shelf) -> None:
    client = http.client.HTTPConnection(ADDRESS, server.port, timeout=20)
    for size in (0, 1, 70_000, 5 << 20):
        body = bytes([size % 251]) * size
        client.request("POST", "/a", body)
        assert client.getresponse().read() == b""
        client.request("GET", "/a")
        assert client.getresponse().read() == body
        client.request("HEAD", "/a")
        answer = client.getresponse()
        assert (answer.read(), answer.getheader("Content-Length")) == (b"", str(size))
    assert server.connections == 1
    client.close()


@pytest.mark.parametrize(
    "request_, expected",
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 411),
        (b"POST /a HTTP/1.1\r\nHost: x\r\n\r\n", 411),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\nabc", 400),
        (b"GET /a HTTP/3.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 431),
        (b"y" * 200_000, 431),
        (b"GET /a HTTP/1.1\r\nHost: x", 408),
    ],
)
def test_a_refused_request_is_told_why_and_the_connection_closes(server: Server, request_: bytes, expected: int) -> None:
    answer = told(server, request_)
    assert status(answer) == expected
    assert b"Connection: close" in answer
    assert b'{"error": "' in answer


def test_a_body_that_is_too_large_is_refused_before_it_comes(server: Server) -> None:
    head = f"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGEST + 1}\r\n"
    assert status(told(server, f"{head}Expect: 100-continue\r\n\r\n".encode())) == 413
    assert status(told(server, f"{head}\r\n".encode() + b"x" * (1 << 20))) == 413


def test_a_client_that_waits_for_100_is_told_to_go_on(server: Server, shelf: Shelf) -> None:
    with connected(server) as line:
        line.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(b"hello")
        assert status(line.recv(1000)) == 200
    assert shelf.kept == b"hello"


def test_requests_that_come_at_once_are_answered_in_order(server: Server) -> None:
    answer = told(
        server,
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        b"GET http://y:9200/a HTTP/1.1\r\nHost: x\r\n\r\n"
        b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /"
        b"HEAD /a HTTP/1.0\r\n\r\n",
    )
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert answer.count(b"abc") == 2
    assert answer.endswith(b"Content-Length: 3\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_torn_body_is_never_kept(server: Server, shelf: Shelf, is_reset: bool) -> None:
    with connected(server) as line:
        line.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 100")
        line.sendall(b"only this")
        if is_reset:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert shelf.ended.acquire(timeout=20)
    assert (shelf.kept, shelf.torn) == (b"", 1)


def test_a_body_that_stalls_is_cut(server: Server, shelf: Shelf) -> None:
    with connected(server) as line:
        line.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nonly this")
        assert shelf.ended.acquire(timeout=20)
        assert line.recv(100) == b""
    assert (shelf.kept, shelf.torn) == (b"", 1)


def test_a_trickle_is_a_stall_too(server: Server, shelf: Shelf) -> None:
    with connected(server) as line:
        line.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        with contextlib.suppress(OSError):
            while not shelf.ended.acquire(timeout=0.05):
                line.sendall(b"x")
    assert shelf.torn == 1


def test_readers_that_never_read_keep_nobody_else_waiting_and_go(shelf: Shelf) -> None:
    shelf.kept = b"y" * (16 << 20)
    limits = Limits(stall_s=3.0)
    server = Server(ADDRESS, 0, serve=shelf.serve, seen=shelf.seen, clock=time.monotonic, limits=limits)
    server.start()
    lines = []
    try:
        for _ in range(40):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect((ADDRESS, server.port))
            line.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
            lines.append(line)
        until(lambda: server.connections == 40)
        assert len(told(server, b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) > len(shelf.kept)
        until(lambda: server.connections == 0)
    finally:
        server.stop()
        for line in lines:
            line.close()


def test_one_connection_too_many_is_told_so_at_once(server: Server) -> None:
    lines = [connected(server) for _ in range(QUICK.most_own)]
    until(lambda: server.connections == len(lines))
    answer = told(server, b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status(answer) == 503
    assert b"Retry-After: 1" in answer
    for line in lines:
        line.close()
    until(lambda: server.connections == 0)
    assert status(told(server, b"GET /a HTTP/1.0\r\n\r\n")) == 200


def test_a_stranger_keeps_nobody_but_himself_out(shelf: Shelf) -> None:
    own = own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")
    limits = Limits(most_of_a_stranger=3, linger_s=0.3)
    server = Server(ADDRESS, 0, serve=shelf.serve, seen=shelf.seen, clock=time.monotonic, limits=limits)
    server.start()
    try:
        lines = [socket.create_connection((ADDRESS, server.port), 20, (own, 0)) for _ in range(4)]
        until(lambda: server.connections == 4)
        lines[-1].sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(lines[-1].recv(1000)) == 503
        lines[0].sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(lines[0].recv(1000)) == 200
        assert status(told(server, b"GET /a HTTP/1.0\r\n\r\n")) == 200
        for line in lines:
            line.close()
    finally:
        server.stop()


def test_a_failure_costs_its_own_request_alone(server: Server) -> None:
    client = http.client.HTTPConnection(ADDRESS, server.port, timeout=20)
    client.request("GET", "/fails")
    answer = client.getresponse()
    assert answer.status == 500
    assert b"its log says how" in answer.read()
    client.request("GET", "/a")
    assert client.getresponse().status == 200
    client.close()


def test_an_answer_that_cannot_be_ended_is_never_taken_for_a_whole_one(server: Server) -> None:
    client = http.client.HTTPConnection(ADDRESS, server.port, timeout=20)
    client.request("GET", "/fails-late")
    answer = client.getresponse()
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        answer.read()
    client.close()


def test_an_idle_connection_is_closed_after_its_time_and_without_a_word(server: Server) -> None:
    with connected(server) as line:
        assert line.recv(100) == b""


def test_an_idle_connection_from_elsewhere_is_closed_sooner(shelf: Shelf) -> None:
    own = own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")
    limits = Limits(idle_s=60.0, idle_elsewhere_s=0.2)
    server = Server(ADDRESS, 0, serve=shelf.serve, seen=shelf.seen, clock=time.monotonic, limits=limits)
    server.start()
    try:
        with connected(server) as near, socket.create_connection((ADDRESS, server.port), 20, (own, 0)) as far:
            assert far.recv(100) == b""
            near.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(near.recv(1000)) == 200
    finally:
        server.stop()


def test_an_idle_connection_is_kept_long_by_default() -> None:
    assert Limits().idle_s >= 600


def test_stopping_ends_conversations_and_frees_the_port(server: Server, shelf: Shelf) -> None:
    with connected(server) as line:
        line.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nonly this")
        until(lambda: server.connections == 1)
        server.stop()
        assert line.recv(100) == b""
    again = Server(ADDRESS, server.port, serve=shelf.serve, seen=shelf.seen, clock=time.monotonic)
    again.start()
    again.stop()
