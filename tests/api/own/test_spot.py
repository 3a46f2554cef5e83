"""Operations of spot capacity, through both doors."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from api.operations.notice_reports import TELL
from everstep.notices import NoticeKind, SpotNotice
from models.clock import WallClock
from models.cluster.table import Cluster
from models.ids import InstanceId
from models.job.changes import settle_processes
from models.node import queries as nodes
from models.node.changes import settle_launched, settle_wanted_node
from models.node.states import CapacityType
from models.session import Sessions, unit_of_work
from models.spot.changes import report_prices
from models.spot.ledger import Point
from tests import rows
from tests.api.own.conftest import Rest
from tests.api.own.test_doors import refused

C5 = "ml.c5.xlarge"
NOW = WallClock().now().replace(microsecond=0)
"""In whole seconds: older clients send no others."""


def spot_group(name: str, count: int = 1, **more: Any) -> Any:
    wire = {"InstanceGroupName": name, "InstanceType": C5, "InstanceCount": count, **more}
    return rows.group_spec(name, count, spec=wire)


@pytest.fixture
def world(sessions: Sessions) -> dict[str, str]:
    """A spot host that has run for two hours, a job on it in the last one, and prices."""
    with unit_of_work(sessions) as session:
        groups = (spot_group("spot", CapacityRequirements={"Spot": {}}), spot_group("demand", 0))
        cluster = rows.cluster(session, "c1", groups=groups, is_continuous=True)
        group = next(one for one in session.query(rows.InstanceGroup) if one.name == "spot")
        node = settle_wanted_node(session, group, now=NOW - timedelta(hours=2))
        begun = NOW - timedelta(hours=2)
        settle_launched(session, node, instance_id=InstanceId(f"i-{1:017x}"), address="127.0.0.1", now=begun)
        job = rows.job(session, cluster, replicas=1)
        settle_processes(session, job, [(node.id, 0)], now=NOW - timedelta(hours=1))
        points = [(CapacityType.SPOT, "us-east-1a", 3, "0.06"), (CapacityType.SPOT, "us-east-1a", 1, "0.08")]
        points += [(CapacityType.ON_DEMAND, "", 9, "0.17")]
        report_prices(
            session,
            [Point(market, C5, zone, NOW - timedelta(hours=hours), Decimal(price)) for market, zone, hours, price in points],
        )
        return {"job": job.id, "node": node.id}


def test_savings_are_what_spot_seconds_cost_less_than_the_list_price(ours: Any, world: dict[str, str]):
    found = ours.get_spot_savings(Cluster="c1", Until=NOW)
    assert found["SpotCost"] == found["TotalCost"] == "0.140000"
    assert (found["ListCost"], found["Saved"], found["SavedShare"]) == ("0.340000", "0.200000", pytest.approx(0.5882))
    assert (found["Nodes"], found["SpotHours"], found["UnpricedHours"]) == (1, 2.0, 0.0)
    [one] = found["ByType"]
    assert (one["InstanceType"], one["CapacityType"], one["Cost"]) == (C5, "Spot", "0.140000")


def test_a_job_is_billed_for_the_time_that_it_had_the_host_and_a_span_is_cut_to_the_second(ours: Any, world: dict[str, str]):
    assert ours.get_spot_savings(JobId=world["job"], Until=NOW)["SpotCost"] == "0.080000"
    half = ours.get_spot_savings(Cluster="c1", Since=NOW - timedelta(hours=1.5), Until=NOW - timedelta(hours=1))
    assert half["SpotCost"] == "0.030000"
    assert ours.get_spot_savings(Team="nobody")["Nodes"] == 0


def test_a_span_that_ends_before_it_begins_is_refused(ours: Any, world: dict[str, str]):
    code, message = refused(ours.get_spot_savings, Since=NOW, Until=NOW - timedelta(hours=1))
    assert (code, "Since must be earlier" in message) == ("ValidationException", True)


def test_prices_come_in_pages_oldest_first(ours: Any, rest: Rest, world: dict[str, str]):
    first = ours.list_spot_prices(MaxResults=1)
    second = ours.list_spot_prices(MaxResults=1, NextToken=first["NextToken"])
    assert [page["Prices"][0]["PricePerHour"] for page in (first, second)] == ["0.06", "0.08"]
    assert "NextToken" not in second
    [listed] = rest("GET", "/v1/spot-prices?capacity_type=OnDemand").json()["Prices"]
    assert (listed["Zone"], listed["PricePerHour"]) == (None, "0.17")
    assert ours.list_spot_prices(InstanceType="ml.none.xlarge")["Prices"] == []


def test_a_policy_is_kept_shown_and_forgotten(ours: Any, rest: Rest, world: dict[str, str]):
    put = ours.put_spot_policy(Cluster="c1", InstanceGroup="spot", FallbackGroups=["demand"], MaxPricePerHour="0.12")
    assert (put["ReturnToSpot"], put["MaxPricePerHour"], put["FallBackAfterSeconds"]) == (True, "0.12", 120)
    ours.put_spot_policy(Cluster="c1", InstanceGroup="spot", FallbackGroups=["demand"], ReturnToSpot=False)
    found = rest("GET", "/v1/spot-policies?cluster=c1").json()
    assert [(one["InstanceGroup"], one["ReturnToSpot"], one["MaxPricePerHour"]) for one in found["Policies"]] == [
        ("spot", False, None)
    ]
    assert found["Loans"] == []
    ours.delete_spot_policy(Cluster="c1", InstanceGroup="spot")
    assert ours.list_spot_policies(Cluster="c1")["Policies"] == []
    assert refused(ours.delete_spot_policy, Cluster="c1", InstanceGroup="spot")[0] == "ResourceNotFound"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"InstanceGroup": "none"}, "InstanceGroup: cluster c1 has no group 'none'; its groups are: demand, spot."),
        ({"InstanceGroup": "demand"}, "is not bought on the spot market"),
        ({"FallbackGroups": ["none"]}, "FallbackGroups: cluster c1 has no group 'none'"),
        ({"InstanceGroup": "spot", "FallbackGroups": ["spot"]}, "cannot stand in for itself"),
        ({"FallbackGroups": ["demand", "demand"]}, "names a group twice"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_by_name(ours: Any, world: dict[str, str], asked: dict[str, Any], says: str):
    code, message = refused(ours.put_spot_policy, Cluster="c1", **asked)
    assert code == "ValidationException"
    assert says in message


@pytest.mark.parametrize("absurd", [float("nan"), float("inf"), -float("inf"), 1e18])
def test_a_notice_whose_times_no_calendar_has_counts_as_one_that_does_not_say_when(
    world: dict[str, str], sessions: Sessions, absurd: float
):
    with unit_of_work(sessions) as session:
        node = nodes.get(session, world["node"], lock=True)
        TELL[SpotNotice](session, node, SpotNotice(NoticeKind.INTERRUPTION, at=absurd, deadline=absurd), NOW)
        assert (node.leave_by, node.takes_work) == (NOW + timedelta(seconds=120), False)


def test_what_an_agent_reports_of_its_provider_is_a_notice_and_told_back_is_its_end(
    ours: Any, world: dict[str, str], sessions: Sessions
):
    told = SpotNotice(NoticeKind.INTERRUPTION, at=NOW.timestamp(), deadline=NOW.timestamp() + 120)
    with unit_of_work(sessions) as session:
        node = nodes.get(session, world["node"], lock=True)
        TELL[SpotNotice](session, node, told, NOW)
        assert (node.leave_by, node.takes_work) == (NOW + timedelta(seconds=120), False)
    [notice] = ours.list_spot_notices(Cluster="c1", Open=True)["Notices"]
    assert (notice["Kind"], notice["State"], notice["Source"]) == ("Interruption", "Announced", "imds")
    with unit_of_work(sessions) as session:
        node = nodes.get(session, world["node"], lock=True)
        TELL[SpotNotice](session, node, SpotNotice(NoticeKind.INTERRUPTION, at=NOW.timestamp(), is_over=True), NOW)
        assert node.leave_why is None
        assert session.query(Cluster).count() == 1
