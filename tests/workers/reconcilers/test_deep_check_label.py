"""What a node's label says of its deep health checks, once they are over."""

from __future__ import annotations

import pytest

from models.health import changes, queries
from models.health.states import CheckKind
from models.health.table import HealthCheck
from models.node import queries as nodes
from models.node.labels import DEEP_CHECK
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane
from workers.plans.health import PATIENCE


def examine(plane: SmallPlane, node_id: str) -> None:
    with unit_of_work(plane.sessions) as session:
        node = nodes.get(session, node_id, lock=True)
        changes.settle_started(session, node, [CheckKind.STRESS], now=plane.clock.at)
    look(plane, node_id)
    assert plane.node(node_id).labels[DEEP_CHECK] == "InProgress"


def look(plane: SmallPlane, node_id: str) -> None:
    """The checks are looked at, and then the node."""
    with unit_of_work(plane.sessions) as session:
        checks = [check.id for check in session.query(HealthCheck).order_by(HealthCheck.created_at)]
    for check_id in checks:
        plane.reconcile("health", check_id)
    for _ in range(2):
        plane.reconcile("node", node_id)


def answer(plane: SmallPlane, node_id: str, verdict: str) -> None:
    with unit_of_work(plane.sessions) as session:
        node = nodes.get(session, node_id, lock=True)
        (check,) = queries.asked_of_node(session, node_id)
        finding = {"kind": CheckKind.STRESS.value, "verdict": verdict, "says": verdict}
        changes.report_findings(session, node, check, [finding], now=plane.clock.at)
    look(plane, node_id)


@pytest.mark.parametrize("outcomes", [("skipped",), ("passed", "skipped"), ("passed", "skipped", "skipped")])
def test_a_check_that_was_skipped_leaves_what_the_one_before_it_found(plane, outcomes):
    (node,) = plane.nodes(plane.serving(1))
    for outcome in outcomes:
        examine(plane, node.id)
        answer(plane, node.id, outcome)
    well = plane.node(node.id)
    assert well.labels.get(DEEP_CHECK) == ("Passed" if "passed" in outcomes else None)
    assert (well.held_for, well.takes_work) == (None, True)


def test_a_check_that_never_finds_the_node_without_work_leaves_no_word_of_itself(plane):
    cluster_id = plane.serving(2)
    job_id = plane.training(cluster_id, replicas=2, spares=0)
    node_id = plane.members(job_id)[0].node_id
    examine(plane, node_id)
    plane.clock.at += PATIENCE
    plane.listen()
    look(plane, node_id)
    assert DEEP_CHECK not in plane.node(node_id).labels
    assert plane.node(node_id).held_for is None
