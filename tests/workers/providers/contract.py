"""What every provider must do. A provider's own test inherits from this and gives a ``provider`` with room for two hosts and no more."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.patience import PATIENCE
from workers.providers.base import HostNotFound, HostRef, HostSpec, InUse, Market, NoCapacity, Provider, Refused, Site, Volume

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
    deadline = time.monotonic() + ENOUGH_S * PATIENCE
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def release_for_good(provider: Provider, ref: HostRef) -> None:
    deadline = time.monotonic() + ENOUGH_S * PATIENCE
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

    @pytest.fixture
    def volume_id(self) -> str:
        """One that exists, where a provider does not make it."""
        return "vol-0123456789abcdef0"

    @pytest.fixture
    def interface_id(self) -> str:
        return "eni-0123456789abcdef0"

    @pytest.fixture
    def sites(self) -> tuple[Site, ...]:
        """Where hosts may stand, each of a known zone."""
        return (Site(zone="us-east-1a"),)

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

    @pytest.mark.parametrize("kind", ["reboot", "reimage"])
    def test_a_restarted_host_keeps_its_id_and_address_and_is_alive(self, provider, kind):
        wish = spec()
        before = provider.launch(wish)
        wanted = replace(wish, start=1, image="2.0.0")
        after = getattr(provider, kind)(HostRef(wish.claim, before.instance_id), wanted)
        assert (after.instance_id, after.address, after.is_alive, after.start) == (before.instance_id, before.address, True, 1)
        assert provider.describe(HostRef(wish.claim)) == after
        assert len(provider.hosts()) == 1

    def test_a_host_is_restarted_once_for_a_start_however_often_it_is_asked_for(self, provider):
        wish = spec()
        provider.launch(wish)
        again = replace(wish, start=1)
        first = provider.reboot(HostRef(wish.claim), again)
        assert provider.reboot(HostRef(wish.claim), again) == first
        assert provider.reboot(HostRef(wish.claim), wish) == first

    def test_an_image_is_the_hosts_after_a_reimage(self, provider):
        wish = spec()
        assert provider.launch(replace(wish, image="1.0.0")).image == "1.0.0"
        assert provider.reimage(HostRef(wish.claim), replace(wish, start=1, image="2.0.0")).image == "2.0.0"
        assert provider.describe(HostRef(wish.claim)).image == "2.0.0"

    def test_what_was_never_launched_cannot_be_restarted_or_be_given_anything(self, provider):
        ref = HostRef("never")
        for call in (
            lambda: provider.reboot(ref, spec()),
            lambda: provider.reimage(ref, spec()),
            lambda: provider.attach_volume(ref, Volume("vol-00000001", "/dev/xvdf")),
            lambda: provider.detach_volume(ref, "vol-00000001"),
            lambda: provider.attach_interface(ref, "eni-00000001"),
        ):
            with pytest.raises(HostNotFound):
                call()

    def test_a_volume_is_one_hosts_at_a_time(self, provider, volume_id):
        one, two = spec(), spec()
        volume = Volume(volume_id, "/dev/xvdf")
        for wish in (one, two):
            provider.launch(wish)
        for _ in range(2):
            provider.attach_volume(HostRef(one.claim), volume)
        assert provider.describe(HostRef(one.claim)).volumes == (volume,)
        with pytest.raises(InUse):
            provider.attach_volume(HostRef(two.claim), volume)
        for _ in range(2):
            provider.detach_volume(HostRef(one.claim), volume.id)
        provider.attach_volume(HostRef(two.claim), volume)
        assert provider.describe(HostRef(one.claim)).volumes == ()
        release_for_good(provider, HostRef(two.claim))
        provider.attach_volume(HostRef(one.claim), volume)

    def test_an_interface_is_one_hosts_at_a_time(self, provider, interface_id):
        one, two = spec(), spec()
        for wish in (one, two):
            provider.launch(wish)
        for _ in range(2):
            provider.attach_interface(HostRef(one.claim), interface_id)
        assert provider.describe(HostRef(one.claim)).interfaces == (interface_id,)
        with pytest.raises(InUse):
            provider.attach_interface(HostRef(two.claim), interface_id)

    @pytest.mark.parametrize("kind", ["reboot", "reimage"])
    def test_what_is_attached_stays_attached_over_a_restart(self, provider, kind, volume_id):
        wish = spec()
        volume = Volume(volume_id, "/dev/xvdf")
        provider.launch(wish)
        provider.attach_volume(HostRef(wish.claim), volume)
        assert getattr(provider, kind)(HostRef(wish.claim), replace(wish, start=1)).volumes == (volume,)

    @pytest.mark.parametrize("market", Market)
    def test_a_host_is_of_the_market_that_was_asked_for_or_is_refused(self, provider, market):
        wish = replace(spec(), market=market)
        try:
            host = provider.launch(wish)
        except Refused:
            assert market is Market.SPOT
            return
        assert (host.market, provider.describe(HostRef(wish.claim)).market) == (market, market)

    def test_a_host_stands_in_a_zone_that_was_asked_for_where_there_are_zones(self, provider, sites):
        wish = replace(spec(), sites=sites)
        host = provider.launch(wish)
        assert host.zone in {None, *(site.zone for site in sites)}
        assert provider.describe(HostRef(wish.claim)).zone == host.zone
        assert host.instance_type in {None, wish.instance_type}
