"""Replicas that arrive by several streams: what is sealed is what its digest says, whoever is fast, slow, torn or lying; and all streams end alike."""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from unittest import mock

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.memory_tier.arriving import Arrivals, Unfinished
from agent.memory_tier.store import Corrupt, NoRoom, Store
from agent.memory_tier.stripes import LEAST_BYTES, Stream, alone, attempted
from everstep.shards import Seal, ShardKind

BODY = bytes(range(251)) * 4000
PIECE = 50_000
ENDS_S = 30
STEPS = itertools.count(1)


def told(step: int, body: bytes = BODY) -> Seal:
    digest = xxhash.xxh3_128(body).hexdigest()
    return Seal("ns", 0, step, ShardKind.DATA, len(body), digest, "stamp", 1.0, save="s", origin="n2")


def streams(count: int, stripe: int = LEAST_BYTES) -> list[Stream]:
    return attempted(count, stripe)


class Torn(Exception):
    """The other end has gone."""


def sends(body: bytes, stream: Stream, *, before=lambda _: None, between=lambda _: None):
    """Fills what it is asked for with what the stream carries, in pieces, as a socket does.

    ``before`` is called with where each stripe begins, ``between`` with where each piece does.
    """
    spans = stream.spans(len(body))

    def fill(view: memoryview, seen) -> None:
        if not len(view):
            return
        start, end = next(spans)
        assert end - start == len(view)
        before(start)
        for at in range(start, end, PIECE):
            between(at)
            piece = view[at - start : min(at + PIECE, end) - start]
            piece[:] = body[at : at + len(piece)]
            seen(piece)

    return fill


def whole(arrivals: Arrivals) -> Seal:
    stream = alone()
    return arrivals.take_in(told(7), stream, sends(BODY, stream))


def raised(done: Future) -> type[BaseException]:
    return type(done.exception(ENDS_S))


@pytest.fixture
def arrivals(store):
    return Arrivals(store)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 5),
    stripe=st.integers(LEAST_BYTES, 4 * LEAST_BYTES),
    flipped=st.none() | st.integers(0, len(BODY) - 1),
    seed=st.integers(0, 999),
)
def test_streams_that_come_in_any_order_end_alike_and_are_hashed_as_they_come(arrivals, store, count, stripe, flipped, seed):
    step = next(STEPS)
    sent = bytearray(BODY)
    if flipped is not None:
        sent[flipped] ^= 1
    hashed: list[int] = []

    def seal(segment, kind, *, begun):
        hashed.append(begun.nbytes)
        return Store.seal(store, segment, kind, begun=begun)

    come = random.Random(seed).sample(streams(count, stripe), count)
    with mock.patch.object(store, "seal", seal), ThreadPoolExecutor(count) as pool:
        done = [pool.submit(arrivals.take_in, told(step), stream, sends(bytes(sent), stream)) for stream in come]
    assert hashed == [len(BODY)]
    if flipped is None:
        (found,) = {one.result() for one in done}
        with store.read(found) as reading:
            assert bytes(reading.view) == BODY
        store.drop("ns", step=step, why="seen")
    else:
        assert {raised(one) for one in done} == {Corrupt}
        assert store.find("ns", 0, step) is None
    assert store.usage.spare == store.usage.used


@pytest.mark.parametrize("at", [0, LEAST_BYTES, 4 * LEAST_BYTES, 5 * LEAST_BYTES], ids=["first", "second", "later", "later still"])
def test_a_stream_that_is_torn_ends_the_others_and_nothing_is_held(arrivals, store, at):
    def tears(start: int) -> None:
        if start == at:
            raise Torn

    come = streams(2)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(arrivals.take_in, told(7), stream, sends(BODY, stream, before=tears)) for stream in come]
    assert {raised(one) for one in done} == {Torn, Unfinished}
    assert store.find("ns", 0, 7) is None
    assert store.usage.spare == store.usage.used
    assert whole(arrivals).digest == told(7).digest


def test_a_stream_that_comes_when_another_has_failed_does_not_wait(arrivals):
    def tears(_: int) -> None:
        raise Torn

    first, second = streams(2)
    with pytest.raises(Torn):
        arrivals.take_in(told(7), first, sends(BODY, first, before=tears))
    with pytest.raises(Unfinished, match="another stream of the replica ended early"):
        arrivals.take_in(told(7), second, mock.Mock(side_effect=AssertionError))


def test_a_stream_whose_sibling_never_comes_is_let_go_of(store):
    first, _ = streams(2)
    with pytest.raises(Unfinished, match="no byte of another stream"):
        Arrivals(store, patience_s=0.05).take_in(told(7), first, sends(BODY, first))
    assert store.usage.spare == store.usage.used


def test_a_slow_stream_keeps_the_others_waiting_as_long_as_bytes_come(store):
    """Its first stripe takes longer than the patience, and no piece of it does."""
    arrivals, (first, second) = Arrivals(store, patience_s=1.0), streams(2, 10 * PIECE)
    pause = threading.Event()

    def slowly(at: int) -> None:
        if at < 10 * PIECE:
            pause.wait(0.15)

    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(arrivals.take_in, told(7), first, sends(BODY, first, between=slowly)),
            pool.submit(arrivals.take_in, told(7), second, sends(BODY, second)),
        ]
    assert {one.result(ENDS_S).digest for one in done} == {told(7).digest}


def test_two_pushes_of_one_shard_at_once_are_never_mixed(arrivals, store):
    """A liar sends other bytes under the same seal, at the same moment: the honest one is sealed all the same."""
    together = threading.Barrier(2)

    def meets(start: int) -> None:
        if start == 0:
            together.wait(ENDS_S)

    honest, liar = streams(2), streams(2)
    with ThreadPoolExecutor(4) as pool:
        good = [pool.submit(arrivals.take_in, told(7), one, sends(BODY, one, before=meets)) for one in honest]
        bad = [pool.submit(arrivals.take_in, told(7), one, sends(bytes(len(BODY)), one, before=meets)) for one in liar]
    assert {one.result().digest for one in good} == {told(7).digest}
    assert {raised(one) for one in bad} == {Corrupt}
    with store.read(store.find("ns", 0, 7)) as reading:
        assert bytes(reading.view) == BODY


def test_a_stream_that_comes_twice_is_refused_and_the_first_goes_on(arrivals, store):
    """Else the second might write over what the first has hashed."""
    stream = alone()

    def again(start: int) -> None:
        with pytest.raises(ValueError, match="here already"):
            arrivals.take_in(told(7), stream, mock.Mock(side_effect=AssertionError))

    assert arrivals.take_in(told(7), stream, sends(BODY, stream, before=again)).digest == told(7).digest
    assert store.usage.spare == 0


def test_what_is_here_already_is_not_asked_for_again(arrivals):
    held = whole(arrivals)
    used = mock.Mock()
    assert {arrivals.take_in(told(7), stream, used) for stream in streams(2)} == {held}
    used.assert_not_called()


def test_without_room_no_stream_is_asked_for_a_byte(arrivals, store):
    come, used = streams(2), mock.Mock()
    with mock.patch.object(store, "take", side_effect=NoRoom("full")), ThreadPoolExecutor(2) as pool:
        done = [pool.submit(arrivals.take_in, told(7), stream, used) for stream in come]
    assert {raised(one) for one in done} == {NoRoom}
    used.assert_not_called()


def test_when_the_tier_ends_nobody_waits_for_a_stream_any_more(arrivals, store):
    first, _ = streams(2)
    waits = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(arrivals.take_in, told(7), first, sends(BODY, first, before=lambda _: waits.set()))
        assert waits.wait(ENDS_S)
        arrivals.end()
        assert raised(done) is Unfinished
    assert store.usage.spare == store.usage.used
