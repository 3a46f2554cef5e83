"""Waits double up to a limit, are never equal for everybody, and end with the outage."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from agent.memory_tier.outage import FIRST_S, MOST_S, Outage


@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_waits_double_and_never_pass_the_limit(seed, failures):
    outage = Outage(random.Random(seed))
    now = 1000.0
    for number in range(failures):
        outage.failed("no route", now)
        wait_s = outage.wait_s(now)
        longest = min(MOST_S, FIRST_S * 2**number)
        assert longest / 2 <= wait_s <= longest
        now += wait_s
        assert outage.wait_s(now) == 0.0


def test_the_words_stay_the_same_for_as_long_as_it_lasts():
    outage = Outage(random.Random(1))
    assert outage.words("the store") is None
    outage.failed("no route", 0.0)
    first = outage.words("the store")
    outage.failed("no route", 500.0)
    assert outage.words("the store") == first == "the store has not answered since 00:00:00 UTC: no route"
    outage.succeeded()
    assert (outage.words("the store"), outage.wait_s(500.0)) == (None, 0.0)


def test_two_nodes_come_back_at_different_times():
    outages = [Outage(random.Random(seed)) for seed in range(8)]
    for outage in outages:
        for _ in range(10):
            outage.failed("no route", 0.0)
    assert len({outage.next_at for outage in outages}) == len(outages)


def test_an_injected_outage_that_is_over_is_not_waited_for():
    outage = Outage(random.Random(1))
    for _ in range(10):
        outage.failed("injected", 0.0)
    outage.hurry()
    assert outage.wait_s(0.0) == 0.0
    assert outage.words("the store") is not None, "it is over when it has answered"
