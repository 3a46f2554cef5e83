from __future__ import annotations

from decimal import Decimal

import pytest

from everstep.hardware import FaultClass
from workers.fleet.scenario import Blow, Scenario, ScenarioError, Spread, Strike

WHOLE = """
seed: 7
speed: 60
capacity: 1200
zones: [a, b]
quotas:
  ml.p5.48xlarge: {a: 10, b: 2}
  ml.c5.large: 5
refused: [ml.x]
boot: {seconds: [20, 40], failures: 0.1, listed_after: 5, release_seconds: 3, lifecycle_seconds: 2, lifecycle_failures: 0.2}
hardware:
  - {code: "xid:79", class: replace, per_host_hour: 0.01, type: NvidiaErrorTerminate, reason: XidHardwareFailure}
spot: {per_hour: 5, per_host_hour: 0.1, notice: 120, noticed: 0.5, at: [10, 20]}
outages: [{at: 60, share: 0.6, seconds: 30}]
deaths: [{at: 30, hosts: 30}]
prices:
  on_demand: {ml.c5.large: 0.085}
  spot:
    - {type: ml.c5.large, zone: a, at: 100, per_hour: 0.04}
    - {type: ml.c5.large, zone: a, at: 0, per_hour: 0.03}
training: {steps: 100, step_seconds: 0.5, warm_up_seconds: 3, reform_seconds: [1, 2], checkpoint_every: 10, sharded: true}
"""


def test_every_key_of_a_scenario_is_read(tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(WHOLE)
    scenario = Scenario.load(path)
    assert (scenario.seed, scenario.speed, scenario.capacity, scenario.zones) == (7, 60.0, 1200, ("a", "b"))
    assert scenario.quotas == {"ml.p5.48xlarge": {"a": 10, "b": 2}, "ml.c5.large": {"a": 5}}
    assert scenario.boot.seconds == Spread(20, 40)
    assert scenario.boot.lifecycle == Spread(2, 2)
    assert scenario.hardware[0].fault_class is FaultClass.REPLACE
    assert scenario.spot.at == (10, 20)
    assert scenario.strikes == (Strike(Blow.DEATH, 30, hosts=30), Strike(Blow.OUTAGE, 60, share=0.6, seconds=30))
    assert scenario.on_demand == {"ml.c5.large": Decimal("0.085")}
    assert [price.per_hour for price in scenario.prices] == [Decimal("0.03"), Decimal("0.04")]
    assert scenario.training.is_sharded


@pytest.mark.parametrize(
    ("wire", "named"),
    [
        ({"sed": 1}, "`sed` is not known here"),
        ({"boot": {"second": 1}}, "`boot.second` is not known here"),
        ({"boot": {"failures": 2}}, "`boot.failures` is a share of all"),
        ({"boot": {"seconds": [3, 1]}}, "`boot.seconds` must be seconds"),
        ({"speed": 0}, "`speed` must be more than nothing"),
        ({"speed": "fast"}, "`speed` must be a number"),
        ({"speed": float("nan")}, "`speed` must be a number"),
        ({"capacity": True}, "`capacity` must be a number"),
        ({"quotas": {"ml.c5.large": {"nowhere": 1}}}, "names zones that `zones` does not: nowhere"),
        ({"hardware": [{"code": "xid:1", "class": "bad"}]}, r"`hardware\[0\].class` must be one of"),
        ({"outages": [{"at": 3}]}, r"`outages\[0\].hosts` says how many"),
        ({"prices": {"spot": [{"type": "t", "zone": "z", "per_hour": "dear"}]}}, r"`prices.spot\[0\].per_hour` must be dollars"),
        ({"training": {"steps": 0}}, "`training.steps`"),
        ({"zones": "a"}, "`zones` must be a list of texts"),
        ([], "must be an object"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_named_by_its_path(wire, named):
    with pytest.raises(ScenarioError, match=named):
        Scenario.read(wire)


def test_a_file_that_cannot_be_read_is_named_in_one_error(tmp_path):
    with pytest.raises(ScenarioError, match=r"nowhere.yaml cannot be read"):
        Scenario.load(tmp_path / "nowhere.yaml")
    (tmp_path / "bad.yaml").write_text("{")
    with pytest.raises(ScenarioError, match="neither YAML nor JSON"):
        Scenario.load(tmp_path / "bad.yaml")


def test_an_empty_file_is_a_fleet_that_nothing_befalls(tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    assert Scenario.load(tmp_path / "empty.yaml") == Scenario()
