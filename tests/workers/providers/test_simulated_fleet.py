from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx
import pytest

from tests.workers.fleet.running import running
from tests.workers.providers.contract import ProviderContract, spec
from workers.providers.base import HostNotFound, HostRef, Market, ProviderError, Refused, Site, Throttled
from workers.providers.simulated_fleet import DOOR, FleetProvider
from workers.providers.simulated_wire import error_from_wire, error_to_wire, spec_from_wire, spec_to_wire


class TestFleetBehindItsDoor(ProviderContract):
    @pytest.fixture
    def provider(self, tmp_path):
        with running({"capacity": 2}, tmp_path / "fleet") as fleet:
            yield fleet.provider


class TestFleetThatReleasesSlowly(ProviderContract):
    @pytest.fixture
    def provider(self, tmp_path):
        with running({"capacity": 2, "boot": {"release_seconds": 0.1}}, tmp_path / "fleet") as fleet:
            yield fleet.provider


def test_without_a_fleet_every_call_says_how_to_start_one(tmp_path):
    provider = FleetProvider(tmp_path)
    with pytest.raises(ProviderError, match=r"python -m workers\.fleet"):
        provider.hosts()
    assert provider.settles_within == timedelta(0)


def test_a_fleet_that_has_died_without_a_word_is_an_error_to_try_again(tmp_path):
    (tmp_path / DOOR).write_text(json.dumps({"url": "http://127.0.0.1:9", "token": "t"}))
    with pytest.raises(ProviderError, match="does not answer"):
        FleetProvider(tmp_path).hosts()


def test_hosts_outlive_whoever_launched_them_and_are_told_late_by_both(tmp_path):
    with running({"boot": {"listed_after": 0.2}}, tmp_path / "fleet") as fleet:
        host = fleet.provider.launch(spec("claim"))
        again = FleetProvider(tmp_path / "fleet")
        assert again.settles_within == timedelta(seconds=0.2)
        assert again.launch(spec("claim")).instance_id == host.instance_id
        with pytest.raises(HostNotFound):
            again.describe(HostRef("claim"))


def test_the_door_takes_its_token_alone_and_is_in_a_file_that_is_its_owners_alone(tmp_path):
    with running({}, tmp_path / "fleet") as fleet:
        told = json.loads((tmp_path / "fleet" / DOOR).read_text())
        assert httpx.post(f"{told['url']}/hosts", json={}, headers={"authorization": "Bearer other"}).status_code == 401
        headers = {"authorization": f"Bearer {told['token']}"}
        assert httpx.post(f"{told['url']}/nothing", json={}, headers=headers).status_code == 404
        assert httpx.post(f"{told['url']}/launch", json={}, headers=headers).status_code == 400
        assert (tmp_path / "fleet" / DOOR).stat().st_mode & 0o077 == 0
        assert fleet.provider.hosts() == ()
    assert not (tmp_path / "fleet" / DOOR).exists()


@pytest.mark.parametrize("body", ["[]", "7", '"launch"', "{", "[" * 100_000], ids=["list", "number", "text", "half", "deep"])
def test_a_call_whose_body_is_no_object_is_refused_in_one_sentence(tmp_path, body):
    with running({}, tmp_path / "fleet"):
        told = json.loads((tmp_path / "fleet" / DOOR).read_text())
        headers = {"authorization": f"Bearer {told['token']}"}
        for verb in ("hosts", "strike"):
            answer = httpx.post(f"{told['url']}/{verb}", content=body, headers=headers)
            message = answer.json()["error"]["message"]
            assert (answer.status_code, message) == (400, f"{verb}: ValueError: the body must be a JSON object")


def test_prices_come_from_the_scenarios_trace(tmp_path):
    trace = [{"type": "ml.c5.large", "zone": "a", "at": 0, "per_hour": 0.031}]
    with running({"prices": {"on_demand": {"ml.c5.large": 0.085}, "spot": trace}}, tmp_path / "fleet") as fleet:
        (price,) = fleet.provider.spot(["ml.c5.large"], since=datetime(2030, 1, 1, tzinfo=UTC))
        assert (price.zone, price.per_hour) == ("a", Decimal("0.031"))
        assert fleet.provider.on_demand("ml.c5.large") == Decimal("0.085")
        assert fleet.provider.on_demand("ml.x") is None


def test_a_wish_and_an_error_are_the_same_on_the_other_side_of_the_door():
    wish = replace(spec(), market=Market.SPOT, sites=(Site("s", ("g",), "a"),), threads_per_core=1)
    assert spec_from_wire(json.loads(json.dumps(spec_to_wire(wish)))) == wish
    for error in (Refused("no"), Throttled("slowly", timedelta(seconds=3)), ProviderError("hm")):
        back = error_from_wire(json.loads(json.dumps(error_to_wire(error))))
        assert (type(back), str(back)) == (type(error), str(error))
        assert getattr(back, "after", None) == getattr(error, "after", None)
