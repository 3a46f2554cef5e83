"""What is written of nodes' conditions, and what is counted of them afterwards."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from models.condition import changes, queries
from models.condition.changes import COUNT, Finding
from models.condition.states import ConditionState, FaultClass, Repair, Source
from models.condition.table import Condition
from models.node.changes import settle_node
from models.node.states import STARTED_ANEW, NodeState
from models.node.table import Node
from tests import rows

NOW = rows.NOW
BEFORE = NOW - timedelta(minutes=10)
_C = ConditionState


@pytest.fixture
def crew(session: Session) -> list[Node]:
    return rows.nodes(session, rows.cluster(session), 4)


def found(session: Session, node: Node, name: str = "f1", fault_class: FaultClass = FaultClass.REBOOT, **facts) -> Condition:
    told = {"code": "xid:73", "type": "NvidiaErrorReboot", "reason": "XidHardwareFailure", "evidence": "NVRM", "at": NOW} | facts
    row = changes.report_fault(session, node, Finding(name, fault_class, **told), now=NOW)
    assert row is not None
    return row


def reach(session: Session, node: Node, row: Condition, state: ConditionState, repair: Repair = Repair.REBOOT) -> None:
    changes.settle_repair(row, repair)
    changes.settle_condition(session, node, row, state, why="a test", now=NOW)


@pytest.mark.parametrize(("state", "starts", "counted"), [(_C.HELD, 0, 0), (_C.REPAIRING, 0, 0), (_C.REPAIRING, 1, 1)])
def test_a_reboot_that_never_came_about_is_not_remembered_as_one(session: Session, crew: list[Node], state, starts, counted):
    node = crew[0]
    row = found(session, node)
    reach(session, node, row, state)
    node.starts = starts
    changes.settle_all_over(session, node, why="Somebody says that all is well.", now=NOW)
    assert row.state is _C.RESOLVED
    again = found(session, node, "f2")
    assert queries.reboots_before(session, again, since=BEFORE) == counted


@pytest.mark.parametrize(
    ("state", "end"), [(_C.CONFIRMED, _C.RESOLVED), (_C.HELD, _C.RESOLVED), (_C.REPAIRING, None), (_C.SUSPECTED, _C.WITHDRAWN)]
)
def test_devices_that_are_all_there_again_end_what_was_counted(session: Session, crew: list[Node], state, end):
    row = found(session, crew[0], code=COUNT, source=Source.CHECK, is_certain=state is not _C.SUSPECTED)
    if state in (_C.HELD, _C.REPAIRING):
        reach(session, crew[0], row, state)
    changes.report_well(session, crew[0], COUNT, why="All 8 devices are there.", now=NOW)
    assert row.state is (end or state)
    assert row.repair is {_C.HELD: Repair.NOTHING, _C.REPAIRING: Repair.REBOOT}.get(state)


def test_a_fault_that_a_driver_told_does_not_end_with_a_count(session: Session, crew: list[Node]):
    row = found(session, crew[0], code=COUNT)
    changes.report_well(session, crew[0], COUNT, why="All 8 devices are there.", now=NOW)
    assert row.state is _C.CONFIRMED


def test_a_node_whose_host_goes_gets_no_condition_that_nothing_would_end(session: Session, crew: list[Node]):
    rows.release(session, crew[0])
    finding = Finding("f1", FaultClass.REPLACE, "xid:74", "t", "r", "NVRM", NOW)
    assert changes.report_fault(session, crew[0], finding, now=NOW) is None
    assert queries.of_node(session, crew[0].id) == []


def replaced(session: Session, node: Node, source: Source = Source.AGENT) -> None:
    row = found(session, node, fault_class=FaultClass.REPLACE, source=source)
    reach(session, node, row, _C.REPAIRING, Repair.REPLACE)
    settle_node(session, node, NodeState.DRAINING, why="a test", now=NOW)
    settle_node(session, node, NodeState.RELEASING, why="a test", now=NOW)
    changes.settle_all_over(session, node, why="Its host goes.", now=NOW)


def test_hosts_that_went_because_of_faults_go_on_counting_as_trouble_for_a_while(session: Session, crew: list[Node]):
    for node in crew[:2]:
        replaced(session, node)
    replaced(session, crew[2], Source.OPERATOR)
    seen = queries.trouble(session, crew[0].group_id, target=4, since=BEFORE)
    assert (seen.lost, seen.places, seen.healing) == (2, 2, 2)
    assert queries.trouble(session, crew[0].group_id, target=4, since=NOW + timedelta(seconds=1)).lost == 0


def test_hosts_that_were_replaced_at_a_place_are_counted_there_and_nowhere_else(session: Session, crew: list[Node]):
    for node in crew[:2]:
        replaced(session, node)
    crew[3].logical_id = crew[0].logical_id
    session.flush()
    assert queries.replaced_before(session, crew[3], since=BEFORE) == 1
    assert queries.replaced_before(session, crew[2], since=BEFORE) == 0
    assert queries.replaced_before(session, crew[0], since=BEFORE) == 0


@pytest.mark.parametrize(
    ("state", "obstacle", "counted"), [("requested", "", 1), ("requested", "no capacity", 0), ("booting", "", 1)]
)
def test_a_replacement_whose_host_cannot_be_had_is_not_on_its_way(session: Session, crew: list[Node], state, obstacle, counted):
    node = crew[0]
    node.state = NodeState(state)
    node.facts = {"is_replacement": True} | ({"obstacle": obstacle} if obstacle else {})
    session.flush()
    assert queries.trouble(session, node.group_id, target=4, since=BEFORE).healing == counted


@pytest.mark.parametrize(
    ("fault_class", "happened", "boot_start", "start"),
    [
        pytest.param(FaultClass.REBOOT, -1, 2, 1, id="before the host was started anew"),
        pytest.param(FaultClass.REBOOT, 0, 2, 2, id="since"),
        pytest.param(FaultClass.REBOOT, 1, 1, 1, id="told by the agent of the start before"),
        pytest.param(FaultClass.UNKNOWN, -1, 2, 1, id="a code that nobody knows"),
        pytest.param(FaultClass.REBOOT, None, 2, 2, id="nobody can tell when"),
        pytest.param(FaultClass.REPLACE, -1, 1, 2, id="cured by no start"),
    ],
)
def test_a_fault_counts_for_the_start_at_which_it_happened(
    session: Session, crew: list[Node], fault_class, happened, boot_start, start
):
    node = crew[0]
    node.starts, node.boot_start = 2, boot_start
    node.facts = {STARTED_ANEW: NOW.isoformat()}
    at = None if happened is None else NOW + timedelta(seconds=happened)
    assert found(session, node, fault_class=fault_class, happened_at=at).start == start
