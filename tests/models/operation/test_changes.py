from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from models.cluster import changes as cluster_changes
from models.events import Event
from models.node import queries as nodes
from models.node.changes import settle_node
from models.node.states import NodeState
from models.node.table import Node
from models.node.wishes import request_reboot
from models.operation import changes, queries
from models.operation.states import OperationKind, OperationState
from models.session import Sessions, unit_of_work
from tests import rows

NOW = rows.NOW


def ready_again(session: Session, node: Node) -> None:
    for state in (NodeState.DRAINING, NodeState.REBOOTING, NodeState.CHECKING, NodeState.READY):
        settle_node(session, node, state, why="The test says so.", now=NOW)


def state_of(session: Session, operation_id: str) -> OperationState:
    operation = queries.get(session, operation_id)
    assert operation is not None
    return OperationState(operation.state)


def test_an_operation_about_nodes_is_done_when_the_last_of_them_serves_again(session: Session) -> None:
    cluster = rows.cluster(session)
    made = rows.nodes(session, cluster, 2)
    reboot = changes.request_operation(session, cluster.id, OperationKind.REBOOT, details={}, now=NOW)
    for node in made:
        request_reboot(session, node, why="a test", operation_id=reboot, now=NOW)
    ready_again(session, made[0])
    assert (state_of(session, reboot), made[0].operation_id) == (OperationState.IN_PROGRESS, None)
    ready_again(session, made[1])
    assert state_of(session, reboot) is OperationState.DONE
    told = {event.operation_id for event in session.query(Event).filter(Event.name.like("node re%"))}
    assert reboot in told


def test_a_newer_scaling_supersedes_the_older_and_leaves_what_is_about_nodes_alone(session: Session) -> None:
    cluster = rows.cluster(session)
    (first,) = queries.open_of_cluster(session, cluster.id)
    reboot = changes.request_operation(session, cluster.id, OperationKind.REBOOT, details={}, now=NOW)
    second = changes.request_operation(session, cluster.id, OperationKind.SCALING, details={}, now=NOW)
    assert state_of(session, first.id) is OperationState.SUPERSEDED
    assert (state_of(session, reboot), queries.current(session, cluster.id)) == (OperationState.IN_PROGRESS, second)


def test_a_deletion_supersedes_everything_and_is_done_when_the_cluster_is_gone(session: Session) -> None:
    cluster = rows.cluster(session)
    check = changes.request_operation(session, cluster.id, OperationKind.HEALTH_CHECK, details={"checks": []}, now=NOW)
    cluster_changes.request_deletion(session, cluster, now=NOW)
    deletion = queries.current(session, cluster.id)
    assert deletion is not None
    assert state_of(session, check) is OperationState.SUPERSEDED
    rows.settle_cluster(session, cluster, rows.ClusterState.DELETED)
    assert state_of(session, deletion) is OperationState.DONE


def test_operations_that_nobody_can_look_up_any_more_are_forgotten(session: Session) -> None:
    cluster = rows.cluster(session)
    (first,) = queries.open_of_cluster(session, cluster.id)
    changes.settle_done(session, first.id, now=NOW)
    later = NOW + timedelta(days=14, seconds=1)
    changes.request_operation(session, cluster.id, OperationKind.SCALING, details={}, now=later)
    forgotten = first.id
    session.expunge_all()
    assert queries.get(session, forgotten) is None


def test_a_node_that_is_through_does_not_wait_for_who_supersedes_its_scaling(sessions: Sessions) -> None:
    """A request that supersedes the scaling may hold its row, and wait for this very node: whoever waited for the other would deadlock."""
    with unit_of_work(sessions) as session:
        node = rows.node(session, rows.cluster(session), state=NodeState.BOOTING)
        node_id, scaling = node.id, node.operation_id
        assert scaling is not None
    with unit_of_work(sessions) as superseding, unit_of_work(sessions) as reconciling:
        queries.get(superseding, scaling, lock=True)
        reconciling.execute(text("SET LOCAL lock_timeout = '2s'"))
        node = nodes.get(reconciling, node_id, lock=True)
        settle_node(reconciling, node, NodeState.CHECKING, why="A test.", now=NOW)
        settle_node(reconciling, node, NodeState.READY, why="A test.", now=NOW)
        assert node.operation_id is None
