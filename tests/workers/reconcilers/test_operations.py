"""Each change of state is one event, and the events of what was asked for carry its operation's id (CP-1)."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import select

from models.cluster import queries as clusters
from models.cluster.counts import request_counts
from models.cluster.states import ClusterState
from models.events import OF_CLUSTERS, Event
from models.health.changes import Wish, request_health_check
from models.health.states import CheckKind
from models.node import queries as nodes
from models.node import wishes
from models.node.changes import settle_unwanted
from models.node.states import NodeState
from models.operation.changes import request_operation
from models.operation.states import OperationKind, OperationState
from models.operation.table import Operation
from models.session import unit_of_work
from tests import rows


def events(plane) -> list[Event]:
    with unit_of_work(plane.sessions) as session:
        return list(session.scalars(select(Event).where(Event.about.in_(OF_CLUSTERS)).order_by(Event.sequence)))


def operations(plane) -> dict[str, Operation]:
    with unit_of_work(plane.sessions) as session:
        return {operation.type: operation for operation in session.scalars(select(Operation))}


def test_a_creation_tells_every_change_of_state_once_and_under_its_operation(plane):
    with unit_of_work(plane.sessions) as session:
        cluster_id = rows.cluster(session, groups=(rows.group_spec("a", 2), rows.group_spec("b", 1)), is_continuous=True).id
    plane.run_until(lambda: plane.states()["group"] == ["in_service"] * 2 and plane.states()["node"] == ["ready"] * 3)
    plane.run(5)
    told = events(plane)
    scaling = operations(plane)[OperationKind.SCALING]
    assert scaling.state is OperationState.DONE
    assert {event.operation_id for event in told} == {scaling.id}
    changes = Counter((event.about, event.group_name, event.node_id, event.name) for event in told)
    assert set(changes.values()) == {1}
    for node in plane.nodes(cluster_id):
        names = [event.name for event in told if event.node_id == node.id]
        assert [name for name in names if name in {"node booting", "agent registered", "node ready"}] == [
            "node booting",
            "agent registered",
            "node ready",
        ]


def test_what_happens_afterwards_belongs_to_no_operation_until_something_is_asked_for_again(plane):
    cluster_id = plane.serving(2, is_continuous=True)
    plane.run(5)
    before = len(events(plane))
    lost = plane.nodes(cluster_id)[0]
    plane.die(lost.instance_id)
    plane.run_until(lambda: plane.node(lost.id).state is NodeState.GONE)
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * 2 and plane.states()["group"] == ["in_service"])
    assert {event.operation_id for event in events(plane)[before:]} == {None}
    healed = len(events(plane))
    plane.delete_cluster(cluster_id)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.DELETED)
    deletion = operations(plane)[OperationKind.DELETION]
    assert deletion.state is OperationState.DONE
    assert {event.operation_id for event in events(plane)[healed:]} == {deletion.id}
    assert not [node for node in plane.nodes(cluster_id) if node.state is not NodeState.GONE]


@pytest.mark.parametrize("later", ["scaled down", "examined", "updated"])
@pytest.mark.parametrize("kind", [OperationKind.REBOOT, OperationKind.MOVE, OperationKind.REPLACEMENT])
def test_what_was_asked_of_a_node_ends_though_something_else_is_asked_of_it_before_it_is_through(plane, kind, later):
    with unit_of_work(plane.sessions) as session:
        cluster_id = rows.cluster(session, groups=(rows.group_spec("a", 2), rows.group_spec("b", 1)), is_continuous=True).id
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * 3 and plane.states()["group"] == ["in_service"] * 2)
    plane.run(5)
    now = plane.clock.at
    with unit_of_work(plane.sessions) as session:
        cluster = clusters.get(session, cluster_id, lock=True)
        first, second = clusters.groups(session, cluster_id)
        node = nodes.get(
            session, next(one.id for one in nodes.of_cluster(session, cluster_id) if one.group_id == first.id), lock=True
        )
        asked = request_operation(session, cluster_id, kind, details={}, now=now)
        match kind:
            case OperationKind.REBOOT:
                wishes.request_reboot(session, node, why="asked for", operation_id=asked, now=now)
            case OperationKind.REPLACEMENT:
                wishes.request_replacement(session, node, why="asked for", operation_id=asked, now=now)
            case OperationKind.MOVE:
                request_counts(session, cluster, {first: -1, second: 1}, current={}, why="A move.", now=now)
                wishes.request_move(session, node, second, operation_id=asked, now=now)
        match later:
            case "scaled down":
                settle_unwanted(session, node, why="The group scales down.", now=now)
            case "examined":
                request_health_check(session, cluster, [Wish(node, (CheckKind.STRESS,))], asked=[], now=now)
            case "updated":
                node.operation_id = request_operation(session, cluster_id, OperationKind.SOFTWARE_UPDATE, details={}, now=now)
    plane.run(60)
    assert operations(plane)[kind].state is OperationState.DONE
