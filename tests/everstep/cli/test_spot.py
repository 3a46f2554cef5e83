"""``everstep spot`` as somebody types it, against a real API on a real database."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from click.testing import Result
from typer.testing import CliRunner

from everstep.cli.main import app
from models.clock import WallClock
from models.ids import InstanceId
from models.node.changes import settle_launched, settle_wanted_node
from models.node.states import CapacityType
from models.session import unit_of_work
from models.spot.changes import report_prices
from models.spot.ledger import Point
from tests import rows
from tests.live import ThreadedApi

Type = Callable[..., Result]
C5 = "ml.c5.xlarge"


@pytest.fixture
def type_(api: ThreadedApi, bearer: str, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.setenv("EVERSTEP_URL", api.url)
    monkeypatch.setenv("EVERSTEP_TOKEN", bearer)
    return lambda *words: CliRunner().invoke(app, ["spot", *(str(word) for word in words)])


@pytest.fixture(autouse=True)
def _host(sessions):
    """A spot host that has run for an hour at 5 cents, where the list says 17."""
    begun = WallClock().now() - timedelta(hours=1)
    wire = {"InstanceGroupName": "spot", "InstanceType": C5, "InstanceCount": 1, "CapacityRequirements": {"Spot": {}}}
    with unit_of_work(sessions) as session:
        groups = (rows.group_spec("spot", 1, spec=wire), rows.group_spec("demand", 0))
        rows.cluster(session, "c1", groups=groups, is_continuous=True)
        group = rows.clusters.groups(session, rows.clusters.find(session, "c1").id)[0]
        node = settle_wanted_node(session, group, now=begun)
        settle_launched(session, node, instance_id=InstanceId(f"i-{1:017x}"), address="127.0.0.1", now=begun)
        markets = ((CapacityType.SPOT, "us-east-1a", "0.05"), (CapacityType.ON_DEMAND, "", "0.17"))
        report_prices(session, [Point(market, C5, zone, begun, Decimal(price)) for market, zone, price in markets])


def test_savings_and_prices_are_told_to_a_person_and_to_a_program(type_: Type):
    shown = type_("savings", "--cluster", "c1")
    assert shown.exit_code == 0, shown.output
    assert "cost   $0.05: $0.05 spot, $0.00 on demand" in shown.stdout
    assert "saved  $0.12 (70.6% of the list price)" in shown.stdout
    assert json.loads(type_("savings", "--json").stdout)["saved_share"] == pytest.approx(0.7059)
    assert [one["price_per_hour"] for one in json.loads(type_("prices", "--json").stdout)["prices"]] == ["0.05"]
    assert "0.17" in type_("prices", "--on-demand").stdout
    assert type_("savings", "--since", "yesterday").exit_code == 2


def test_a_policy_is_set_shown_and_dropped(type_: Type):
    put = type_("policy", "c1", "--fallback", "demand", "--max-price", "0.2", "--json")
    assert put.exit_code == 0, put.output
    [policy] = json.loads(put.stdout)["policies"]
    assert (policy["fallback_groups"], policy["max_price_per_hour"]) == (["demand"], "0.2")
    assert "demand" in type_("policy", "c1").stdout
    assert json.loads(type_("policy", "c1", "--drop", "--json").stdout)["policies"] == []
    assert json.loads(type_("notices", "c1", "--json").stdout)["notices"] == []
    refused = type_("policy", "c1", "--fallback", "none")
    assert (refused.exit_code, "has no group 'none'" in refused.output) == (2, True)
