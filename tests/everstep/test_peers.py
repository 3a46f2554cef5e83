"""A peer's death is seen while nobody waits for it."""

import socket
import threading

import pytest

from everstep.resilience.peers import PeerWatch


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            yield here, there


def watch(here):
    seen = threading.Event()
    return PeerWatch([here.dup()], seen.set), seen


def test_the_end_of_a_connection_is_told_at_once(pair):
    here, there = pair
    watching, seen = watch(here)
    there.close()
    assert seen.wait(5)
    watching.stop()


def test_bytes_that_nobody_has_read_are_no_end(pair):
    here, there = pair
    watching, seen = watch(here)
    there.sendall(b"gradient")
    assert not seen.wait(0.2)
    there.close()
    assert seen.wait(5)
    watching.stop()


def test_a_watch_that_was_stopped_tells_nothing_and_holds_no_connection_open(pair):
    here, there = pair
    watching, seen = watch(here)
    watching.stop()
    watching.stop()
    here.close()
    assert there.recv(1) == b"", "the peer hears that we have left"
    assert not seen.is_set()
