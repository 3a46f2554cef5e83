"""Everything is hashed again and again: first what was adopted, then slowly all of it."""

from __future__ import annotations

import threading
import time

import pytest

from agent.memory_tier.scrub import SHARE, Scrub
from everstep.tiers import CopyStatus
from tests.agent.memory_tier.test_store import KIB, save
from tests.checkpoint.tiers import until


@pytest.fixture
def scrubbing():
    """Starts scrubs and ends them."""
    started = []

    def start(store, every_s=1000.0):
        scrub = Scrub(store, every_s=every_s)
        started.append(scrub)
        scrub.start()
        return scrub

    yield start
    for scrub in started:
        scrub.stop()


def test_what_was_adopted_is_hashed_at_once_and_then_told(make_store, scrubbing):
    seals = {save(make_store(), step, bytes([step]) * 50 * KIB).key for step in (1, 2, 3)}
    later = make_store()
    told = []
    later.watch(told.append)
    scrub = scrubbing(later)
    assert scrub.wait_settled(30)
    assert {seal.key for seal in later.seals()} == seals
    assert {(change.seal.key, change.why) for change in told} == {(key, "adopted") for key in seals}
    assert scrub.scrubbed_bytes == 3 * 50 * KIB


def test_the_youngest_of_what_was_adopted_is_hashed_first(make_store, scrubbing):
    before = make_store()
    for step in (1, 2, 3):
        save(before, step, b"x" * KIB, written_at=float(step))
    later = make_store()
    order = []
    later.watch(lambda change: order.append(change.seal.step))
    assert scrubbing(later).wait_settled(30)
    assert order == [3, 2, 1]


def test_a_byte_that_memory_has_forgotten_is_found_later(store, scrubbing):
    told = []
    store.watch(told.append)
    good = save(store, 1, b"a" * 50 * KIB)
    bad = save(store, 2, b"b" * 50 * KIB)
    store.spoil(bad, at=49 * KIB)
    scrubbing(store, every_s=0.01)
    until(lambda: store.seals() == (good,), "the corrupt shard goes")
    assert [change.seal for change in told if change.status is CopyStatus.CORRUPT] == [bad]


def test_a_shard_that_goes_while_it_is_hashed_is_not_called_corrupt(store):
    seal = save(store, 1, b"a" * (9 << 20))
    told = []
    store.watch(told.append)
    assert not store.verify(seal, between=lambda _: store.drop("ns", why="test")) or not store.seals()
    assert {change.status for change in told} == {CopyStatus.DROPPED}
    assert store.corruptions == 0


def test_a_round_takes_no_more_than_its_share_of_a_core(store, scrubbing):
    save(store, 1, b"a" * (40 << 20))
    scrub = scrubbing(store, every_s=0.0)
    until(lambda: scrub.scrubbed_bytes > 0, "a round begins")
    began, done = time.process_time(), scrub.scrubbed_bytes
    busy = threading.Event()
    busy.wait(1.0)  # what is measured is how little happens meanwhile
    hashed = scrub.scrubbed_bytes - done
    assert time.process_time() - began < 0.3
    assert hashed < 40e9 * SHARE


def test_a_scrub_ends_in_the_middle_of_a_round(store, scrubbing):
    save(store, 1, b"a" * (40 << 20))
    scrub = scrubbing(store, every_s=0.0)
    until(lambda: scrub.scrubbed_bytes > 0, "a round begins")
    began = time.monotonic()
    scrub.stop()
    assert time.monotonic() - began < 5
    assert len(store.seals()) == 1
