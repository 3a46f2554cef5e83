"""Replicas that arrive in parts: what is sealed is what its digest says, in whatever order parts come and whoever else writes them."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.memory_tier.arriving import Arrivals
from agent.memory_tier.store import Corrupt, Store
from everstep.shards import Seal, ShardKind

BODY = bytes(range(251)) * 9000
PIECE = 1 << 20


def told(step: int, body: bytes = BODY) -> Seal:
    digest = xxhash.xxh3_128(body).hexdigest()
    return Seal("ns", 0, step, ShardKind.DATA, len(body), digest, "stamp", 1.0, save="s", origin="n2")


def writes(body: bytes, start: int, *, halfway=lambda: None):
    """Fills what it is asked for, from ``start`` on; ``halfway`` is called before the second piece."""
    at, calls = start, 0

    def fill(view: memoryview) -> None:
        nonlocal at, calls
        calls += 1
        if calls == 2:
            halfway()
        view[:] = body[at : at + len(view)]
        at += len(view)

    return fill


@pytest.fixture
def arrivals(store):
    return Arrivals(store, clock=time.monotonic)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, len(BODY) - 1), max_size=4), flipped=st.none() | st.integers(0, len(BODY) - 1), data=st.data())
def test_parts_in_any_order_are_sealed_only_if_the_whole_has_its_digest(arrivals, store, cuts, flipped, data):
    step = data.draw(st.integers(1, 10**9))
    edges = sorted({0, *cuts, len(BODY)})
    spans = data.draw(st.permutations(list(itertools.pairwise(edges))))
    sent = bytearray(BODY)
    if flipped is not None:
        sent[flipped] ^= 1
    *first, last = spans
    for start, end in first:
        assert arrivals.take_in(told(step), start, end, writes(sent, start)) is None
    if flipped is None:
        seal = arrivals.take_in(told(step), *last, writes(sent, last[0]))
        with store.read(seal) as reading:
            assert bytes(reading.view) == BODY
        store.drop("ns", step=step, why="seen")
    else:
        with pytest.raises(Corrupt):
            arrivals.take_in(told(step), *last, writes(sent, last[0]))
        assert store.find("ns", 0, step) is None


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, len(BODY) - 1), min_size=1, max_size=8), streams=st.integers(1, 3))
def test_when_the_last_part_is_there_all_has_been_hashed(arrivals, store, cuts, streams):
    """Streams take part after part in order, as a peer sends them: nothing is left to be hashed by whoever seals it."""
    spans = iter(list(itertools.pairwise(sorted({0, *cuts, len(BODY)}))))
    store.drop("ns", step=7, why="the example before")
    hashed: list[int] = []

    def seal(segment, kind, *, begun):
        hashed.append(begun.nbytes)
        return Store.seal(store, segment, kind, begun=begun)

    def stream() -> list[Seal | None]:
        return [arrivals.take_in(told(7), start, end, writes(BODY, start)) for start, end in spans]

    with mock.patch.object(store, "seal", seal), ThreadPoolExecutor(streams) as pool:
        answers = list(itertools.chain.from_iterable(one.result() for one in [pool.submit(stream) for _ in range(streams)]))
    assert [answer.digest for answer in answers if answer] == [told(7).digest]
    assert hashed == [len(BODY)]


@pytest.mark.parametrize("start", [0, 700], ids=["the same part", "a part that overlaps"])
def test_what_a_second_writer_puts_over_hashed_bytes_is_noticed(arrivals, store, start):
    """The honest one has hashed its first piece; a liar writes over it, and the honest one ends last."""
    is_hashed, is_over = threading.Event(), threading.Event()

    def halfway() -> None:
        is_hashed.set()
        assert is_over.wait(30)

    raised: list[Corrupt] = []

    def honest() -> None:
        try:
            arrivals.take_in(told(7), 0, len(BODY), writes(BODY, 0, halfway=halfway))
        except Corrupt as error:
            raised.append(error)

    thread = threading.Thread(target=honest)
    thread.start()
    assert is_hashed.wait(5), raised
    arrivals.take_in(told(7), start, PIECE, writes(bytes(len(BODY)), start))
    is_over.set()
    thread.join(30)
    assert [type(error) for error in raised] == [Corrupt]
    assert store.find("ns", 0, 7) is None
