"""What every provider must do. A provider's own test inherits from this and gives a ``provider`` with room for two hosts and no more."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

from workers.providers.base import HostNotFound, HostRef, HostSpec, NoCapacity, Provider

ENOUGH_S = 20.0


def spec(claim: str | None = None) -> HostSpec:
    return HostSpec(
        claim=claim or str(uuid.uuid4()),
        instance_type="ml.c5.large",
        vcpus=2,
        memory_mib=4096,
        boot_token="boot-token-of-the-tests",
        tags={"everstep:cluster": "c1"},
    )


def until(claim: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def release_for_good(provider: Provider, ref: HostRef) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while time.monotonic() < deadline:
        try:
            provider.release(ref)
        except HostNotFound:
            return
        time.sleep(0.02)
    pytest.fail(f"{ref} was not released")


class ProviderContract:
    @pytest.fixture
    def provider(self) -> Provider:
        raise NotImplementedError

    def test_a_launched_host_is_alive_and_carries_its_claim_and_tags(self, provider):
        wish = spec()
        host = provider.launch(wish)
        assert host.is_alive
        assert host.claim == wish.claim
        assert host.tags["everstep:cluster"] == "c1"
        assert host.instance_id.startswith("i-")
        assert len(host.instance_id) == 19

    def test_the_same_claim_launched_twice_is_one_host(self, provider):
        wish = spec()
        first = provider.launch(wish)
        assert provider.launch(wish) == first
        assert [host.instance_id for host in provider.hosts()] == [first.instance_id]

    def test_two_claims_are_two_hosts_with_addresses_of_their_own(self, provider):
        one, two = provider.launch(spec()), provider.launch(spec())
        assert one.instance_id != two.instance_id
        assert one.address != two.address

    def test_a_host_is_found_by_its_claim_alone(self, provider):
        wish = spec()
        host = provider.launch(wish)
        assert provider.describe(HostRef(wish.claim)) == host
        assert provider.describe(HostRef(wish.claim, host.instance_id)) == host

    def test_every_host_is_listed_until_it_is_released(self, provider):
        wishes = [spec(), spec()]
        for wish in wishes:
            provider.launch(wish)
        assert {host.claim for host in provider.hosts()} == {wish.claim for wish in wishes}
        release_for_good(provider, HostRef(wishes[0].claim))
        assert {host.claim for host in provider.hosts()} == {wishes[1].claim}

    def test_what_was_never_launched_is_not_found(self, provider):
        with pytest.raises(HostNotFound):
            provider.describe(HostRef("never"))
        with pytest.raises(HostNotFound):
            provider.release(HostRef("never", "i-00000000000000000"))

    def test_a_released_host_is_not_found_any_more(self, provider):
        wish = spec()
        host = provider.launch(wish)
        release_for_good(provider, HostRef(wish.claim, host.instance_id))
        with pytest.raises(HostNotFound):
            provider.describe(HostRef(wish.claim, host.instance_id))

    def test_without_room_there_is_no_capacity_until_a_host_is_released(self, provider):
        wishes = [spec(), spec()]
        for wish in wishes:
            provider.launch(wish)
        third = spec()
        with pytest.raises(NoCapacity):
            provider.launch(third)
        assert provider.launch(wishes[0]).is_alive
        release_for_good(provider, HostRef(wishes[0].claim))
        assert provider.launch(third).is_alive
