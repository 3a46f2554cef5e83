"""Votes: whoever has counted has heard everybody, all count alike, and every wait can be left."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import CollectiveFailed
from everstep.protocol import Generation, Member
from everstep.resilience.unwind import Unwind
from everstep.resilience.votes import Votes
from tests.patience import PATIENCE

SOON_S = 5.0 * PATIENCE


class Escape:
    """As the membership's, moved by hand."""

    def __init__(self) -> None:
        self.superseded = False
        self.messages: list[str] = []

    def is_superseded(self) -> bool:
        return self.superseded

    def cut(self) -> None:
        """Nothing fails by itself here."""

    def failed(self, message: str) -> None:
        self.messages.append(message)


def generation(size: int, token: str = "secret") -> Generation:
    members = tuple(Member(rank, f"p{rank}", f"n{rank}", "127.0.0.1", 0) for rank in range(size))
    return Generation(job="j", number=1, cause="start", members=members, rendezvous="127.0.0.1:1", token=token)


def everybody(work: Callable[[int], Any], size: int) -> list[Any]:
    """Each rank in a thread; what came out of it, an error included."""
    found: list[Any] = [None] * size

    def rank(number: int) -> None:
        try:
            found[number] = work(number)
        except (CollectiveFailed, Unwind) as error:
            found[number] = error

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S * 2)
    assert not any(thread.is_alive() for thread in threads), "somebody is left in a vote"
    return found


@contextlib.contextmanager
def met(size: int, escape: Escape | None = None) -> Iterator[list[Votes]]:
    votes = [Votes("127.0.0.1") for _ in range(size)]
    ports = [one.open() for one in votes]
    everybody(lambda rank: votes[rank].meet(generation(size), rank, ports, escape or Escape()), size)
    try:
        yield votes
    finally:
        for one in votes:
            one.close()


def vote(votes: list[Votes], told: list[list[float]]) -> list[Any]:
    def rank(number: int) -> list[float]:
        votes[number].cast(told[number])
        return votes[number].count()

    return everybody(rank, len(votes))


@settings(max_examples=25)
@given(st.data(), st.integers(1, 9), st.integers(1, 6))
def test_every_rank_counts_the_same_bits_whatever_was_told(data: Any, size: int, width: int) -> None:
    numbers = st.floats(width=64) | st.sampled_from([1e308, -1e308, math.inf, -math.inf])
    told = data.draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=size, max_size=size))
    with met(size) as votes:
        counted = vote(votes, told)
    assert len({str(sums) for sums in counted}) == 1
    for sums, column in zip(counted[0], zip(*told, strict=True), strict=True):
        if all(abs(number) < 1e300 for number in column):
            assert sums == math.fsum(column)


def test_one_that_is_fast_waits_for_all_others_in_each_vote() -> None:
    size, rounds = 5, 60
    cast = [0] * size
    seen = []

    def rank(number: int) -> None:
        for step in range(rounds):
            if number == step % size:
                time.sleep(0.001)
            cast[number] = step + 1
            votes[number].cast([float(number), float(step)])
            assert votes[number].count() == [sum(range(size)), float(step * size)]
            seen.append(min(cast) > step)

    with met(size) as votes:
        assert everybody(rank, size) == [None] * size
    assert len(seen) == size * rounds
    assert all(seen), "somebody had counted before everybody had cast"


def test_what_is_larger_than_any_buffer_goes_both_ways_at_once() -> None:
    told = [[float(rank)] * 300_000 for rank in range(3)]
    with met(3) as votes:
        assert [sums == [3.0] * 300_000 for sums in vote(votes, told)] == [True] * 3


def test_alone_the_own_vote_is_the_sum() -> None:
    votes = Votes("127.0.0.1")
    votes.cast([1.0, 2.5])
    assert votes.count() == [1.0, 2.5]


def test_strangers_at_the_door_are_turned_away() -> None:
    votes = [Votes("127.0.0.1") for _ in range(2)]
    ports = [one.open() for one in votes]
    with contextlib.ExitStack() as strangers:
        for port in ports:
            for words in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(32)):
                stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
                stranger.sendall(words)
        assert everybody(lambda rank: votes[rank].meet(generation(2), rank, ports, Escape()), 2) == [None, None]
        assert vote(votes, [[1.0], [2.0]]) == [[3.0], [3.0]]
    for one in votes:
        one.close()


def test_whoever_knows_another_secret_meets_nobody() -> None:
    votes, escape = [Votes("127.0.0.1") for _ in range(2)], Escape()
    ports = [one.open() for one in votes]
    threading.Timer(0.2, lambda: setattr(escape, "superseded", True)).start()
    found = everybody(lambda rank: votes[rank].meet(generation(2, f"secret {rank}"), rank, ports, escape), 2)
    assert [type(one) for one in found] == [Unwind, Unwind]
    for one in votes:
        one.close()


@pytest.mark.parametrize("size", [2, 5])
def test_a_rank_that_is_gone_fails_the_vote_of_those_who_wait_for_it_and_is_told(size: int) -> None:
    escape = Escape()
    with met(size, escape) as votes:

        def rank(number: int) -> list[float]:
            if number == 0:
                votes[0].close()
                return []
            try:
                votes[number].cast([1.0])
                return votes[number].count()
            finally:
                votes[number].close()  # as in a process that leaves the generation

        found = everybody(rank, size)
    assert [type(one) for one in found[1:]] == [CollectiveFailed] * (size - 1)
    assert len(escape.messages) == size - 1
    assert all(message.startswith("vote: ") for message in escape.messages)


def test_a_vote_without_an_answer_is_left_when_a_newer_generation_comes() -> None:
    escape = Escape()
    with met(3, escape) as votes:
        threading.Timer(0.1, lambda: setattr(escape, "superseded", True)).start()
        votes[0].cast([1.0])
        began = time.monotonic()
        with pytest.raises(Unwind):
            votes[0].count()
        assert time.monotonic() - began < SOON_S


def test_a_partner_that_does_not_listen_any_more_is_named() -> None:
    votes, escape = Votes("127.0.0.1"), Escape()
    gone = Votes("127.0.0.1")
    ports = [votes.open(), gone.open()]
    gone.close()
    with pytest.raises(CollectiveFailed, match=f"127.0.0.1:{ports[1]}"):
        votes.meet(generation(2), 0, ports, escape)
    votes.close()
