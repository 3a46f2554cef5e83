from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from tests.workers.providers.contract import ProviderContract, spec
from workers.fleet.cloud import Cloud, Hooks, Machine
from workers.fleet.scenario import Blow, Scenario, Strike
from workers.fleet.timeline import Timeline
from workers.providers.base import HostNotFound, HostRef, Market, NoCapacity, Refused, Site

BEGAN = 1_900_000_000.0


@dataclass
class World:
    """A cloud in a time that is told, and what its hosts went through."""

    wire: dict

    def __post_init__(self):
        self.now = 0.0
        self.log: list[tuple[float, str, int]] = []
        self.timeline = Timeline(lambda: self.now, began_at=BEGAN, speed=self.wire.get("speed", 1.0))

        def note(what):
            return lambda machine, *_: self.log.append((round(self.now, 3), what, machine.number))

        hooks = Hooks(note("up"), note("down"), note("fault"), note("notice"), note("healed"))
        self.cloud = Cloud(scenario=Scenario.read(self.wire), timeline=self.timeline, hooks=hooks)

    def launch(self, count: int = 1, **changes) -> list[Machine]:
        return [self.cloud.machines[self.cloud.launch(replace(spec(), **changes)).claim] for _ in range(count)]

    def run(self, until: float) -> None:
        while self.timeline.next_at is not None and self.timeline.next_at <= until:
            self.now = max(self.now, self.timeline.next_at)
            self.timeline.advance()
        self.now = until


class TestCloud(ProviderContract):
    @pytest.fixture
    def provider(self):
        return World({"capacity": 2}).cloud


def test_the_nth_host_meets_the_same_fate_in_every_run_of_a_seed():
    wire = {
        "seed": 3,
        "boot": {"seconds": [10, 60], "failures": 0.2},
        "hardware": [{"code": "xid:79", "class": "replace", "per_host_hour": 1}],
        "spot": {"per_host_hour": 1, "noticed": 0.5},
    }
    logs = []
    for seed in (3, 3, 4):
        world = World({**wire, "seed": seed})
        world.launch(20, market=Market.SPOT)
        world.run(7_200)
        logs.append(world.log)
    assert logs[0] == logs[1] != logs[2]
    assert {what for _, what, _ in logs[0]} == {"up", "down", "fault", "notice"}


def test_a_zones_quota_holds_and_the_next_zone_with_room_is_taken():
    world = World({"zones": ["a", "b"], "quotas": {"ml.c5.large": {"a": 1, "b": 1}}})
    assert [machine.host.zone for machine in world.launch(2)] == ["a", "b"]
    with pytest.raises(NoCapacity, match="to be had in a, b"):
        world.launch()
    assert world.launch(instance_type="ml.c5.xlarge")[0].host.zone == "a"


def test_a_wished_zone_that_is_full_is_not_swapped_for_one_that_was_not_wished():
    world = World({"zones": ["a", "b"], "quotas": {"ml.c5.large": {"a": 5, "b": 1}}})
    assert world.launch(sites=(Site(zone="b"),))[0].host.zone == "b"
    with pytest.raises(NoCapacity, match="in b"):
        world.launch(sites=(Site(zone="b"),))


def test_a_refused_type_is_refused_for_good():
    with pytest.raises(Refused):
        World({"refused": ["ml.c5.large"]}).launch()


def test_a_host_comes_up_after_its_boot_and_not_at_all_if_that_fails():
    world = World({"boot": {"seconds": 30}})
    world.launch()
    world.run(29)
    assert world.log == []
    world.run(30)
    assert world.log == [(30.0, "up", 0)]
    broken = World({"boot": {"failures": 1}})
    machine = broken.launch()[0]
    broken.run(1)
    assert broken.log == []
    assert not broken.cloud.describe(HostRef(machine.spec.claim)).is_alive


def test_a_restart_ends_what_runs_and_boots_again_and_a_boot_that_was_overtaken_never_comes_up():
    world = World({"boot": {"seconds": 10}})
    machine = world.launch()[0]
    world.run(10)
    again = replace(machine.spec, start=1)
    world.cloud.reboot(HostRef(machine.spec.claim), again)
    world.run(15)
    world.cloud.reboot(HostRef(machine.spec.claim), replace(again, start=2))
    world.run(40)
    assert world.log == [(10.0, "up", 0), (10.0, "down", 0), (25.0, "up", 0)]


def test_a_released_host_ends_at_once_and_is_known_a_little_longer():
    world = World({"boot": {"release_seconds": 5}})
    machine = world.launch()[0]
    ref = HostRef(machine.spec.claim)
    world.run(1)
    world.cloud.release(ref)
    assert world.log[-1] == (1.0, "down", 0)
    assert not world.cloud.describe(ref).is_alive
    world.run(6)
    world.cloud.release(ref)
    with pytest.raises(HostNotFound):
        world.cloud.release(ref)
    assert not world.cloud.machines


def test_hosts_are_listed_late_by_real_seconds_however_fast_the_scenario_runs():
    world = World({"speed": 10, "boot": {"listed_after": 50}})
    world.launch()
    assert world.cloud.settles_within.total_seconds() == 5
    world.run(49)
    assert world.cloud.hosts() == ()
    world.run(50)
    assert len(world.cloud.hosts()) == 1


def test_a_reclaim_with_a_notice_takes_the_host_at_its_deadline_and_one_without_at_once():
    world = World({"spot": {"at": [100], "notice": 120}})
    world.launch(2)
    world.launch(market=Market.SPOT)
    world.run(100)
    assert world.log[-1] == (100.0, "notice", 2)
    world.run(300)
    assert world.log[-1] == (220.0, "down", 2)
    rude = World({"spot": {"at": [100], "noticed": 0}})
    rude.launch(market=Market.SPOT)
    rude.run(100)
    assert rude.log[-1] == (100.0, "down", 0)


def test_five_reclaims_an_hour_are_about_five_an_hour():
    world = World({"seed": 1, "spot": {"per_hour": 5, "noticed": 0}})
    world.launch(200, market=Market.SPOT)
    world.run(20 * 3_600)
    assert 80 <= sum(what == "down" for _, what, _ in world.log) <= 120


def test_an_outage_cuts_its_share_and_heals_and_a_death_leaves_hosts_dead():
    world = World({"outages": [{"at": 10, "share": 0.6, "seconds": 30}], "deaths": [{"at": 20, "hosts": 3}]})
    machines = world.launch(10)
    world.run(10)
    assert sum(machine.is_cut for machine in machines) == 6
    world.run(50)
    assert not any(machine.is_cut for machine in world.cloud.live())
    assert sum(host.is_alive for host in world.cloud.hosts()) == 7
    assert world.cloud.strike(Strike(Blow.DEATH, 0, share=1.0)) == 7


def test_prices_are_told_as_their_time_comes_with_those_in_force_before():
    trace = [{"type": "ml.c5.large", "zone": "a", "at": at, "per_hour": price} for at, price in ((0, 1), (100, 2), (200, 3))]
    world = World({"speed": 10, "prices": {"on_demand": {"ml.c5.large": "4.5"}, "spot": trace}})
    world.run(150)

    def told(since: float) -> list[Decimal]:
        at = datetime.fromtimestamp(BEGAN + since, UTC)
        return [price.per_hour for price in world.cloud.spot(["ml.c5.large", "ml.x"], since=at)]

    assert told(0) == [1, 2]
    assert told(5) == [1, 2]
    assert told(12) == [2]
    assert world.cloud.spot(["ml.c5.large"], since=datetime.fromtimestamp(BEGAN, UTC))[1].at.timestamp() == BEGAN + 10
    assert world.cloud.on_demand("ml.c5.large") == Decimal("4.5")
    assert world.cloud.on_demand("ml.x") is None
