"""Which sockets are a group's, and are cut with it."""

import contextlib
import socket

import pytest

from everstep.resilience.fence import Fence

PEER, ALIAS, ELSEWHERE = "127.0.0.1", "127.0.0.5", "127.0.0.77"


class Sockets:
    """Closes all that it has made."""

    def __init__(self, stack):
        self.stack = stack

    def listener(self, address):
        return self.stack.enter_context(socket.create_server((address, 0)))

    def dial(self, server, source=PEER):
        return self.stack.enter_context(socket.create_connection(server.getsockname(), source_address=(source, 0)))

    def accept(self, server):
        return self.stack.enter_context(server.accept()[0])


@pytest.fixture
def sockets():
    with contextlib.ExitStack() as stack:
        yield Sockets(stack)


def is_shut(one):
    """Whether its own reading side says that it is over."""
    one.settimeout(0)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False


def test_what_leads_to_a_member_is_cut_and_what_the_script_has_opened_to_elsewhere_is_not(sockets):
    peer, logger = sockets.listener(PEER), sockets.listener(ELSEWHERE)
    fence, older = Fence(), sockets.dial(peer)
    with fence.around_construction(1, {PEER}):
        group, own = sockets.dial(peer), sockets.dial(logger)
    assert fence.cut(2)
    assert [is_shut(one) for one in (group, own, older)] == [True, False, False]


def test_a_cut_within_the_construction_leaves_the_scripts_own_as_well(sockets):
    peer, logger = sockets.listener(PEER), sockets.listener(ELSEWHERE)
    fence = Fence()
    with fence.around_construction(1, {PEER}):
        group, own = sockets.dial(peer), sockets.dial(logger)
        fence.cut(2)
    assert [is_shut(one) for one in (group, own)] == [True, False]


def test_a_peer_that_comes_from_another_address_of_its_node_is_cut(sockets):
    here = sockets.listener(PEER)
    fence = Fence()
    with fence.around_construction(1, {PEER}):
        sockets.dial(here, ALIAS)
        group = sockets.accept(here)
    fence.cut(2)
    assert is_shut(group)


def test_without_addresses_everything_that_appears_is_the_groups(sockets):
    logger = sockets.listener(ELSEWHERE)
    fence = Fence()
    with fence.around_construction(1):
        own = sockets.dial(logger)
    fence.cut(2)
    assert is_shut(own)


def test_one_of_ours_is_never_cut(sockets):
    peer = sockets.listener(PEER)
    fence = Fence()
    with fence.around_construction(1, {PEER}):
        own = fence.exempt(sockets.dial(peer))
    fence.cut(2)
    assert not is_shut(own)


def test_news_that_are_late_cut_nothing_of_the_generation_that_came_of_them(sockets):
    peer = sockets.listener(PEER)
    fence = Fence()
    with fence.around_construction(2, {PEER}):
        group = sockets.dial(peer)
    assert not fence.cut(2)
    assert not is_shut(group)
