"""What becomes of a cluster for which there are not hosts enough: real rows, a provider that counts its hosts, a clock that is told the time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from models.cluster import queries as clusters
from models.cluster.changes import request_update
from models.cluster.states import ClusterState
from models.cluster.table import Cluster, InstanceGroup
from models.events import Event
from models.session import unit_of_work
from tests import rows

PREFERRED, OTHER = "ml.c5.xlarge", "ml.c5.2xlarge"


def spec(count: int, minimum: int = 0, types: tuple[str, ...] = (PREFERRED,)):
    wire = {"InstanceGroupName": "workers", "InstanceCount": count}
    wire |= {"InstanceType": types[0]} if len(types) == 1 else {"InstanceRequirements": {"InstanceTypes": list(types)}}
    return rows.group_spec(count=count, min_count=minimum, spec=wire | ({"MinInstanceCount": minimum} if minimum else {}))


def continuous(plane, count: int, **more) -> str:
    with unit_of_work(plane.sessions) as session:
        return rows.cluster(session, groups=(spec(count, **more),), is_continuous=True).id


def update(plane, cluster_id: str, count: int, **more) -> None:
    with unit_of_work(plane.sessions) as session:
        cluster = clusters.find(session, session.get_one(Cluster, cluster_id).name, lock=True)
        request_update(session, cluster, groups=[spec(count, **more)], to_delete=[], settings={}, now=plane.clock.at)


def group_of(plane, cluster_id: str) -> InstanceGroup:
    with unit_of_work(plane.sessions) as session:
        return clusters.groups(session, cluster_id)[0]


def told(plane, name: str) -> list[Event]:
    with unit_of_work(plane.sessions) as session:
        return list(session.scalars(select(Event).where(Event.name == name).order_by(Event.sequence)))


def ready(plane) -> int:
    return plane.states()["node"].count("ready")


def hours_later(plane, hours: float) -> None:
    plane.clock.at += timedelta(hours=hours)
    plane.agents()
    plane.run(2)


def test_a_classic_creation_without_capacity_names_group_type_and_zone_and_leaves_nothing(plane):
    plane.provider.scarce = {PREFERRED: 0}
    cluster_id = plane.cluster(3)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.FAILED)
    with unit_of_work(plane.sessions) as session:
        failure = session.get_one(Cluster, cluster_id).failure_message
    assert failure == f"Instance group workers cannot be provisioned with {PREFERRED} in us-east-1a: there are no more {PREFERRED}"
    assert plane.provider.hosts() == ()


def test_in_a_continuous_cluster_what_comes_is_used_and_the_rest_is_tried_again_until_it_comes(plane):
    plane.provider.capacity = 3
    cluster_id = continuous(plane, 5)
    plane.run_until(lambda: ready(plane) == 3)
    plane.run_until(lambda: len(told(plane, "launch impossible")) > 4)
    assert plane.cluster_state(cluster_id) is ClusterState.IN_SERVICE
    assert plane.states()["group"] == ["degraded"]
    tries = told(plane, "launch impossible")
    assert len({event.node_id for event in tries}) == 2
    assert plane.states()["node"].count("requested") == 2
    plane.provider.capacity = 5
    plane.run_until(lambda: ready(plane) == 5)
    plane.run(5)
    assert plane.states()["group"] == ["in_service"]


def test_a_new_group_that_misses_its_minimum_goes_back_to_nothing_and_an_error_says_why(plane):
    plane.provider.capacity = 1
    cluster_id = continuous(plane, 3, minimum=2)
    plane.run_until(lambda: ready(plane) == 1)
    assert plane.states()["group"] == ["creating"]
    hours_later(plane, 3)
    plane.run_until(lambda: plane.provider.hosts() == ())
    group = group_of(plane, cluster_id)
    assert (group.target_count, group.min_count, group.state) == (0, 0, "in_service")
    (event,) = told(plane, "minimum missed")
    assert event.level == "Error"
    assert "has 1 of the 2 nodes that it must have" in event.description
    assert "all 1 hosts are in use" in event.description
    assert plane.cluster_state(cluster_id) is ClusterState.IN_SERVICE


def test_a_group_that_served_goes_back_to_the_counts_with_which_it_served(plane):
    plane.provider.capacity = 3
    cluster_id = continuous(plane, 2)
    plane.run_until(lambda: ready(plane) == 2)
    update(plane, cluster_id, 5, minimum=5)
    plane.run_until(lambda: ready(plane) == 3)
    assert plane.states()["group"] == ["updating"]
    hours_later(plane, 3)
    plane.run_until(lambda: len(plane.provider.hosts()) == 2)
    group = group_of(plane, cluster_id)
    assert (group.target_count, group.min_count, group.state) == (2, 0, "in_service")


@pytest.mark.parametrize("minimum", [2, 3])
def test_the_time_for_a_minimum_begins_again_when_another_one_is_asked_for(plane, minimum):
    plane.provider.capacity = 1
    cluster_id = continuous(plane, 3, minimum=2)
    plane.run_until(lambda: ready(plane) == 1)
    hours_later(plane, 2)
    update(plane, cluster_id, 3, minimum=minimum)
    hours_later(plane, 2)
    assert bool(told(plane, "minimum missed")) == (minimum == 2)


def test_nodes_of_a_flexible_group_are_of_the_first_type_that_is_to_be_had(plane):
    plane.provider.scarce = {PREFERRED: 1}
    cluster_id = continuous(plane, 3, types=(PREFERRED, OTHER))
    plane.run_until(lambda: ready(plane) == 3)
    assert sorted(node.instance_type for node in plane.nodes(cluster_id)) == sorted([PREFERRED, OTHER, OTHER])
    plane.provider.scarce = {}
    update(plane, cluster_id, 4, types=(PREFERRED, OTHER))
    plane.run_until(lambda: ready(plane) == 4)
    newest = max(plane.nodes(cluster_id), key=lambda node: node.created_at)
    assert newest.instance_type == PREFERRED
    update(plane, cluster_id, 2, types=(PREFERRED, OTHER))
    plane.run_until(lambda: len(plane.provider.hosts()) == 2)
    assert [node.instance_type for node in plane.nodes(cluster_id)] == [PREFERRED, PREFERRED]


def test_when_no_type_is_to_be_had_all_are_tried_again_and_again(plane):
    plane.provider.scarce = {PREFERRED: 0, OTHER: 0}
    cluster_id = continuous(plane, 1, types=(PREFERRED, OTHER))
    plane.run_until(lambda: len(told(plane, "launch impossible")) >= 4)
    tried = [event.description for event in told(plane, "launch impossible")]
    assert [PREFERRED in text for text in tried[:4]] == [True, False, True, False]
    plane.provider.scarce = {PREFERRED: 0}
    plane.run_until(lambda: ready(plane) == 1)
    assert [node.instance_type for node in plane.nodes(cluster_id)] == [OTHER]
