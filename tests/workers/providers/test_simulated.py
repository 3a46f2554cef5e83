from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.workers.providers.contract import ProviderContract, spec
from workers.providers.base import HostNotFound, HostRef, Refused
from workers.providers.simulated import SimulatedProvider


class TestSimulated(ProviderContract):
    @pytest.fixture
    def provider(self):
        return SimulatedProvider(capacity=2)


class TestSimulatedWithSlowReleases(ProviderContract):
    @pytest.fixture
    def provider(self):
        return SimulatedProvider(capacity=2, releases=3)


def test_a_type_that_is_refused_is_refused_for_good():
    with pytest.raises(Refused):
        SimulatedProvider(refused=frozenset({"ml.x"})).launch(replace(spec(), instance_type="ml.x"))


def test_a_host_that_shows_up_late_is_not_found_before_and_launched_once():
    now = [datetime(2031, 5, 1, tzinfo=UTC)]
    provider = SimulatedProvider(late=timedelta(seconds=5), now=lambda: now[0])
    wish = spec()
    host = provider.launch(wish)
    assert provider.launch(wish) == host
    assert provider.hosts() == ()
    with pytest.raises(HostNotFound):
        provider.describe(HostRef(wish.claim))
    now[0] += provider.settles_within
    assert provider.hosts() == (host,)
    assert provider.describe(HostRef(wish.claim)) == host


def test_a_killed_host_is_dead_until_it_is_released():
    provider = SimulatedProvider()
    wish = spec()
    provider.launch(wish)
    provider.kill(wish.claim)
    assert not provider.describe(HostRef(wish.claim)).is_alive
    provider.release(HostRef(wish.claim))
    with pytest.raises(HostNotFound):
        provider.describe(HostRef(wish.claim))
