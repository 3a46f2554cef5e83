"""CP-7 and CP-13: a node that starts is examined before it takes work, and is asked for what its group has shown to be possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.clock import WallClock
from models.health import queries as health
from models.health.changes import report_findings, settle_started
from models.health.states import CheckKind, CheckState
from models.health.table import NodeCheck
from models.ids import NodeId
from models.node import queries as nodes
from models.node.states import NodeState
from models.session import Sessions, unit_of_work
from tests import rows
from workers.driver import Driver
from workers.reconcilers.health import HealthReconciler

KINDS = (CheckKind.STRESS, CheckKind.CONNECTIVITY)


def found(rate: float, verdict: str = "passed") -> list[dict[str, Any]]:
    """What an agent says of an all-reduce."""
    says = f"InstanceConnectivity: bandwidth of an all-reduce with 127.0.0.2 is {rate:g} MiB/s"
    common = {"kind": "InstanceConnectivity", "verdict": verdict, "threshold": 5.0}
    return [
        {**common, "says": says, "measured": rate, "unit": "MiB/s", "name": "all_reduce_mib_per_s"},
        {**common, "verdict": "passed", "says": "latency", "measured": 2.0, "unit": "ms", "name": "all_reduce_ms"},
    ]


def group_of(sessions: Sessions, count: int) -> list[NodeId]:
    now = WallClock().now()
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session, is_continuous=True)
        made = [rows.node(session, cluster, number=number, state=NodeState.READY, now=now) for number in range(1, count + 1)]
        for number, node in enumerate(made, start=1):
            node.facts = {**node.facts, "health_port": 9000}
            node.address = f"127.77.0.{number}"
        return [node.id for node in made]


def examine(sessions: Sessions, node_id: NodeId, findings: list[dict[str, Any]]) -> dict[str, Any]:
    """A node is examined as after its start; returns the order that its agent was given."""
    driver = Driver(sessions, WallClock(), "test", {"health": HealthReconciler()})
    with unit_of_work(sessions) as session:
        settle_started(session, nodes.get(session, node_id, lock=True), KINDS, now=WallClock().now())
    check_id = in_session(sessions, lambda session: newest(session, node_id).health_check_id)
    driver.reconcile("health", check_id)
    order = in_session(sessions, lambda session: dict(newest(session, node_id).order))
    with unit_of_work(sessions) as session:
        node = nodes.get(session, node_id, lock=True)
        report_findings(session, node, newest(session, node_id), findings, now=WallClock().now())
    for _ in range(2):
        driver.reconcile("health", check_id)
    return order


def newest(session: Session, node_id: NodeId) -> NodeCheck:
    return session.scalars(select(NodeCheck).where(NodeCheck.node_id == node_id).order_by(NodeCheck.sequence.desc())).first()


def in_session(sessions: Sessions, read: Callable[[Session], Any]) -> Any:
    with unit_of_work(sessions) as session:
        return read(session)


def test_the_floor_is_learned_from_the_others_of_the_group_once_there_are_enough(sessions: Sessions):
    members = group_of(sessions, 6)
    orders = [examine(sessions, node_id, found(300.0)) for node_id in members]
    floors = [order.get("floor") for order in orders]
    assert floors[:4] == [None] * 4
    assert floors[4] == floors[5] == {"mib_per_s": 100.0, "ms": 10.0}
    assert in_session(sessions, lambda session: len(health.measured(session, nodes.get(session, members[0]))["all_reduce_ms"])) == 5


def test_a_node_takes_no_work_before_all_of_its_checks_have_passed(sessions: Sessions):
    (node_id, _) = group_of(sessions, 2)
    with unit_of_work(sessions) as session:
        node = nodes.get(session, node_id, lock=True)
        settle_started(session, node, KINDS, now=WallClock().now())
        assert not node.takes_work
        check_id = newest(session, node_id).health_check_id
    driver = Driver(sessions, WallClock(), "test", {"health": HealthReconciler()})
    driver.reconcile("health", check_id)
    assert in_session(sessions, lambda session: newest(session, node_id).state) is CheckState.ASKED
    assert not in_session(sessions, lambda session: nodes.get(session, node_id).takes_work), "while it is examined"
    with unit_of_work(sessions) as session:
        report_findings(
            session, nodes.get(session, node_id, lock=True), newest(session, node_id), found(300.0), now=WallClock().now()
        )
    for _ in range(2):
        driver.reconcile("health", check_id)
    assert in_session(sessions, lambda session: nodes.get(session, node_id).takes_work)


def test_a_node_below_its_group_s_floor_keeps_its_measured_value_in_its_event_and_takes_no_work(sessions: Sessions):
    members = group_of(sessions, 2)
    examine(sessions, members[0], found(1.0, "failed"))
    node = in_session(sessions, lambda session: nodes.get(session, members[0]))
    assert not node.takes_work
    assert "all-reduce with 127.0.0.2 is 1 MiB/s" in str(node.message)
