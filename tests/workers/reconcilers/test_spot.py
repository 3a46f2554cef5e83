"""Spot groups on a small plane: notices, surges, loans, prices."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from models.access import scope
from models.cluster.table import Cluster
from models.events import Event
from models.node import queries as nodes
from models.node.states import CapacityType, NodeState
from models.session import unit_of_work
from models.spot import queries as spot
from models.spot.changes import PolicyWish, Told, report_notice, report_notice_over, report_prices, request_policy, settle_rate
from models.spot.ledger import Point
from models.spot.rates import Observed
from models.spot.states import NoticeKind, NoticeState
from models.spot.table import Notice, SpotLoan
from tests import rows
from workers.prices import observe_interruptions
from workers.providers.base import Market

SPOT = {"CapacityRequirements": {"Spot": {}}}
TYPES = ("ml.c5.xlarge", "ml.m5.xlarge")


def spot_group(name: str = "spot", count: int = 2, types: tuple[str, ...] = ()):
    wire = {"InstanceGroupName": name, "InstanceCount": count, **SPOT}
    wire |= {"InstanceRequirements": {"InstanceTypes": list(types)}} if types else {"InstanceType": "ml.c5.xlarge"}
    return rows.group_spec(name, count, spec=wire)


def cluster(plane, *groups) -> str:
    with unit_of_work(plane.sessions) as session:
        return rows.cluster(session, groups=groups, is_continuous=True).id


def serving(plane, *groups) -> str:
    made = cluster(plane, *groups)
    wanted = sum(group.count for group in groups)
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * wanted)
    return made


def announce(plane, node_id: str, seconds: float = 120, kind: NoticeKind = NoticeKind.INTERRUPTION, source: str = "imds") -> None:
    deadline = plane.clock.at + timedelta(seconds=seconds) if kind is NoticeKind.INTERRUPTION else None
    with unit_of_work(plane.sessions) as session:
        node = nodes.get(session, node_id, lock=True)
        report_notice(session, node, Told(kind, plane.clock.at, deadline, source), now=plane.clock.at)


def withdraw(plane, node_id: str, kind: NoticeKind = NoticeKind.INTERRUPTION, source: str = "imds") -> None:
    with unit_of_work(plane.sessions) as session:
        report_notice_over(session, nodes.get(session, node_id, lock=True), kind, source, now=plane.clock.at)


def policy(plane, cluster_id: str, **wish) -> None:
    given = {
        "group_name": "",
        "fallback_groups": ("demand",),
        "fall_back_after": timedelta(seconds=30),
        "max_price_per_hour": None,
        "return_to_spot": True,
        "return_after": timedelta(seconds=20),
        "leave_on_rebalance": False,
    } | wish
    with unit_of_work(plane.sessions) as session:
        request_policy(session, session.get_one(Cluster, cluster_id), PolicyWish(**given), now=plane.clock.at)


def until(plane, claim) -> None:
    """As ``run_until``, in longer steps."""
    for _ in range(150):
        if claim():
            return
        plane.run(2, every=2)
    raise AssertionError(f"not within 300 s: {plane.states()}")


def notice_states(plane) -> list[NoticeState]:
    with unit_of_work(plane.sessions) as session:
        return [notice.state for notice in session.query(Notice).order_by(Notice.announced_at, Notice.id)]


def loans(plane, *, open_only: bool = True) -> list[SpotLoan]:
    with unit_of_work(plane.sessions) as session:
        found = session.query(SpotLoan).order_by(SpotLoan.id)
        return [loan for loan in found if loan.returned_at is None or not open_only]


def in_group(plane, cluster_id: str, name: str) -> list:
    return [node for node in plane.nodes(cluster_id) if node.group_name == name]


def event_names(plane) -> list[str]:
    with unit_of_work(plane.sessions) as session:
        return [event.name for event in session.query(Event)]


def test_a_spot_groups_nodes_are_bought_on_the_spot_market_and_say_so(plane):
    here = serving(plane, spot_group(), rows.group_spec("demand", 1))
    assert {node.capacity_type for node in in_group(plane, here, "spot")} == {CapacityType.SPOT}
    assert {node.capacity_type for node in in_group(plane, here, "demand")} == {CapacityType.ON_DEMAND}
    assert Market.SPOT.value == CapacityType.SPOT.value


def test_a_notice_taints_its_node_and_asks_for_a_replacement_in_the_same_moment(plane):
    here = serving(plane, spot_group())
    job_id = plane.training(here, replicas=2, spares=0)
    node = plane.node(plane.members(job_id)[0].node_id)
    announce(plane, node.id)
    plane.work()  # no time passes
    told = plane.node(node.id)
    assert (told.leave_by, told.takes_work) == (plane.clock.at + timedelta(seconds=120), False)
    assert any(taint["Effect"] == "NoSchedule" for taint in told.taints)
    [newer] = [other for other in plane.nodes(here) if other.logical_id == node.logical_id and other.id != node.id]
    assert newer.state is NodeState.BOOTING
    assert told.state is NodeState.READY
    assert notice_states(plane) == [NoticeState.EVACUATING]
    assert "spot interruption announced" in event_names(plane)


def test_an_idle_node_is_let_go_after_a_moment_and_its_place_is_filled_once(plane):
    here = serving(plane, spot_group())
    node = plane.nodes(here)[0]
    announce(plane, node.id)
    plane.run(26, every=4)
    assert notice_states(plane) == [NoticeState.EVACUATED]
    assert plane.node(node.id).state is NodeState.GONE
    assert plane.states()["node"] == ["ready"] * 2
    assert plane.states()["group"] == ["in_service"]
    assert len(plane.provider.hosts()) == 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_busy_node_without_a_substitute_is_kept_until_the_deadline_and_then_taken(plane):
    here = serving(plane, spot_group())
    job_id = plane.training(here, replicas=2, spares=0, max_restarts=9)
    plane.provider.capacity = 2
    node = plane.node(plane.members(job_id)[0].node_id)
    announce(plane, node.id, seconds=20)
    plane.run(15, every=2)
    assert plane.node(node.id).is_wanted
    plane.run(24, every=2)
    assert plane.node(node.id).state is NodeState.GONE
    assert notice_states(plane)[0] in (NoticeState.LOST, NoticeState.EVACUATED)
    plane.provider.capacity = 64
    until(plane, lambda: plane.states()["node"] == ["ready"] * 2)


def test_a_notice_that_is_taken_back_undoes_all_of_it(plane):
    here = serving(plane, spot_group())
    job_id = plane.training(here, replicas=2, spares=0)
    node = plane.node(plane.members(job_id)[0].node_id)
    announce(plane, node.id)
    plane.work()
    withdraw(plane, node.id)
    plane.run(12, every=2)
    assert notice_states(plane) == [NoticeState.WITHDRAWN]
    stays = plane.node(node.id)
    assert (stays.leave_by, stays.leave_why, stays.is_wanted) == (None, None, True)
    assert len([one for one in plane.nodes(here) if one.is_wanted]) == 2


@pytest.mark.parametrize(("first", "second"), [("injected", "imds"), ("imds", "injected")])
def test_the_end_of_one_sources_notice_leaves_the_one_of_another_source_standing(plane, first, second):
    here = serving(plane, spot_group())
    plane.training(here, replicas=2, spares=0)
    node = plane.nodes(here)[0]
    announce(plane, node.id, seconds=60, source=first)
    announce(plane, node.id, seconds=100, source=second)
    assert plane.node(node.id).leave_by == plane.clock.at + timedelta(seconds=60)
    withdraw(plane, node.id, source=first)
    plane.work()
    assert plane.node(node.id).leave_by == plane.clock.at + timedelta(seconds=100)
    assert notice_states(plane) == [NoticeState.EVACUATING]
    withdraw(plane, node.id, source=first)  # told again: it says nothing of the other one
    plane.work()
    assert notice_states(plane) == [NoticeState.EVACUATING]
    withdraw(plane, node.id, source=second)
    plane.work()
    assert (notice_states(plane), plane.node(node.id).leave_why) == ([NoticeState.WITHDRAWN], None)


def test_a_notice_told_twice_is_one_row_and_another_deadline_counts(plane):
    here = serving(plane, spot_group())
    plane.training(here, replicas=2, spares=0)
    node = plane.nodes(here)[0]
    announce(plane, node.id)
    announce(plane, node.id, seconds=60)
    assert len(notice_states(plane)) == 1
    assert plane.node(node.id).leave_by == plane.clock.at + timedelta(seconds=60)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_recommendation_only_warns_unless_the_policy_says_otherwise(plane):
    here = serving(plane, spot_group())
    first, second = plane.nodes(here)
    announce(plane, first.id, kind=NoticeKind.REBALANCE)
    plane.run(3)
    assert plane.node(first.id).takes_work
    assert notice_states(plane) == [NoticeState.ANNOUNCED]
    policy(plane, here, fallback_groups=(), leave_on_rebalance=True)
    announce(plane, second.id, kind=NoticeKind.REBALANCE)
    plane.run(32, every=4)
    assert plane.node(second.id).state is NodeState.GONE
    assert plane.states()["node"] == ["ready"] * 2


def test_of_two_notices_the_one_with_a_deadline_counts_and_the_other_when_that_is_taken_back(plane):
    here = serving(plane, spot_group())
    first, _ = plane.nodes(here)
    policy(plane, here, fallback_groups=(), leave_on_rebalance=True)
    announce(plane, first.id)
    announce(plane, first.id, kind=NoticeKind.REBALANCE)
    plane.run(2)
    assert plane.node(first.id).leave_by is not None
    withdraw(plane, first.id)
    plane.run(2)
    node = plane.node(first.id)
    assert (node.leave_by, "recommends" in str(node.leave_why)) == (None, True)


def test_a_spot_node_that_its_provider_takes_without_a_word_counts_as_an_interruption(plane):
    here = serving(plane, spot_group())
    node = plane.nodes(here)[0]
    plane.die(node.instance_id)
    plane.run_until(lambda: plane.node(node.id).state is NodeState.GONE)
    assert observe_interruptions(plane.sessions, plane.clock) == 1
    with unit_of_work(plane.sessions) as session:
        [row] = spot.reclaimed(session, since=plane.clock.at - timedelta(hours=1))
        assert row.id == node.id
        assert spot.rates(session, ["ml.c5.xlarge"], "us-east-1a")["ml.c5.xlarge"] > 0.1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_without_any_spot_host_another_group_stands_in_and_spot_takes_over_again_when_it_is_back(plane):
    plane.provider.scarce = {"ml.c5.xlarge": 1}
    demand = rows.group_spec("demand", 0, instance_type="ml.m5.xlarge")
    demand.spec["InstanceType"] = "ml.m5.xlarge"
    here = cluster(plane, spot_group(), demand)
    policy(plane, here)
    plane.run(20, every=2)
    assert loans(plane) == []
    until(plane, lambda: [node.state for node in in_group(plane, here, "demand")] == [NodeState.READY])
    assert [node.state for node in in_group(plane, here, "spot")].count(NodeState.READY) == 1
    with unit_of_work(plane.sessions) as session:
        assert spot.standing_in(session, here, ["spot"]) == {"demand"}
    plane.provider.scarce = {}
    until(plane, lambda: not loans(plane))
    until(plane, lambda: not in_group(plane, here, "demand"))
    assert [node.state for node in in_group(plane, here, "spot")] == [NodeState.READY] * 2
    assert {"node borrowed", "node given back"} <= set(event_names(plane))
    assert len(plane.provider.hosts()) == 2


def test_types_are_tried_in_the_order_of_what_was_seen_of_them(plane):
    with unit_of_work(plane.sessions) as session:
        settle_rate(session, "ml.c5.xlarge", "us-east-1a", Observed(9.0, 5.0), now=plane.clock.at)
    here = serving(plane, spot_group(types=TYPES))
    assert {node.instance_type for node in plane.nodes(here)} == {"ml.m5.xlarge"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_group_that_is_not_to_be_had_for_its_price_waits_and_says_so(plane):
    points = [
        Point(CapacityType.SPOT, "ml.c5.xlarge", "us-east-1a", rows.NOW - timedelta(hours=1), Decimal("0.30")),
        Point(CapacityType.SPOT, "ml.c5.xlarge", "us-east-1a", rows.NOW + timedelta(seconds=70), Decimal("0.10")),
    ]
    with unit_of_work(plane.sessions) as session:
        report_prices(session, points)
    here = cluster(plane, spot_group(count=1))
    policy(plane, here, fallback_groups=(), max_price_per_hour=Decimal("0.2"))
    plane.run(40, every=2)
    assert plane.provider.hosts() == ()
    assert "the policy allows 0.2" in plane.nodes(here)[0].message
    until(plane, lambda: plane.states()["node"] == ["ready"])


@pytest.mark.parametrize("table", [Notice, SpotLoan])
def test_what_is_said_of_a_teams_nodes_is_that_teams(table):
    assert scope.rule_of(table, "blue") is not None
