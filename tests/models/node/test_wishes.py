"""What may be asked of a node: restarts, replacement, moves."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from models.cluster import queries as clusters
from models.errors import InTransition, InUse
from models.node import changes, wishes
from models.node.changes import Arrival
from models.node.states import NodeState, Restart
from models.node.table import Node
from tests import rows

NOW = rows.NOW


def drained(session: Session, node: Node) -> None:
    changes.settle_node(session, node, NodeState.DRAINING, why="Asked for.", now=NOW)


def arrive(session: Session, node: Node, *, start: int, boot: str = "boot-2") -> None:
    arrival = Arrival(boot=boot, address="127.77.0.1", rendezvous_port=4000, facts={}, start=start)
    changes.report_registered(session, node, arrival, node_token="t2", now=NOW)


def test_a_reboot_keeps_what_the_lifecycle_scripts_have_done(session: Session) -> None:
    node = rows.node(session, rows.cluster(session), state=NodeState.CHECKING)
    changes.report_lifecycle(session, node, exit_code=0, tail="", now=NOW)
    changes.settle_node(session, node, NodeState.READY, why="Checks passed.", now=NOW)
    before = (node.instance_id, node.logical_id)
    wishes.request_reboot(session, node, why="a test", now=NOW)
    drained(session, node)
    wishes.settle_restart(session, node, why="Drained.", now=NOW)
    assert (node.state, node.starts, node.restart, node.lifecycle_done) == (NodeState.REBOOTING, 1, None, True)
    assert (node.instance_id, node.logical_id) == before


def test_a_reimage_has_the_lifecycle_scripts_run_again(session: Session) -> None:
    node = rows.node(session, rows.cluster(session), state=NodeState.CHECKING)
    changes.report_lifecycle(session, node, exit_code=0, tail="", now=NOW)
    changes.settle_node(session, node, NodeState.READY, why="Checks passed.", now=NOW)
    wishes.request_reimage(session, node, image="1.2.3", drain=timedelta(minutes=5), is_forced=False, why="a test", now=NOW)
    assert (node.restart, node.restart_image, node.restart_drain_s) == (Restart.REIMAGE, "1.2.3", 300)
    drained(session, node)
    wishes.settle_restart(session, node, why="Drained.", now=NOW)
    assert (node.state, node.image, node.lifecycle_done) == (NodeState.UPDATING, "1.2.3", False)
    assert "lifecycle_exit_code" not in node.facts


def test_an_agent_of_the_start_before_does_not_end_the_waiting_for_the_next(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    wishes.request_reimage(session, node, image=None, why="a test", now=NOW)
    drained(session, node)
    wishes.settle_restart(session, node, why="Drained.", now=NOW)
    arrive(session, node, start=0, boot="crashed-and-back")
    changes.report_lifecycle(session, node, exit_code=0, tail="", now=NOW)
    assert (node.state, node.lifecycle_done) == (NodeState.UPDATING, False)
    arrive(session, node, start=1)
    assert (node.state, node.boot_start) == (NodeState.CHECKING, 1)


@pytest.mark.parametrize("first", ["reboot", "replacement", "move"])
@pytest.mark.parametrize("second", ["reboot", "move"])
def test_one_thing_at_a_time_may_be_asked_of_a_node(session: Session, first: str, second: str) -> None:
    cluster = rows.cluster(session, groups=(rows.group_spec(), rows.group_spec("others")))
    node = rows.node(session, cluster)
    target = clusters.groups(session, cluster.id)[1]
    ask = {
        "reboot": lambda: wishes.request_reboot(session, node, why="a test", now=NOW),
        "replacement": lambda: wishes.request_replacement(session, node, why="a test", now=NOW),
        "move": lambda: wishes.request_move(session, node, target, now=NOW),
    }
    ask[first]()
    with pytest.raises(InUse):
        ask[second]()


@pytest.mark.parametrize("state", [NodeState.REQUESTED, NodeState.BOOTING, NodeState.CHECKING])
def test_a_node_that_does_not_serve_yet_is_not_rebooted(session: Session, state: NodeState) -> None:
    node = rows.node(session, rows.cluster(session), state=state)
    with pytest.raises(InTransition):
        wishes.request_reboot(session, node, why="a test", now=NOW)


def test_a_replacement_may_be_asked_for_while_a_restart_does_not_come_back(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    wishes.request_reboot(session, node, why="a test", now=NOW)
    drained(session, node)
    wishes.settle_restart(session, node, why="Drained.", now=NOW)
    wishes.request_replacement(session, node, why="it hangs", now=NOW)
    assert (node.is_wanted, node.is_replaced_on_request) == (False, True)
    with pytest.raises(InTransition):
        wishes.request_replacement(session, node, why="again", now=NOW)


def test_a_moved_node_keeps_its_ids_and_gets_its_new_groups_software(session: Session) -> None:
    here, there = rows.cluster(session), rows.cluster(session, "c2", groups=(rows.group_spec("theirs"),))
    node = rows.node(session, here)
    ids = (node.id, node.instance_id, node.logical_id, node.address)
    target = clusters.groups(session, there.id)[0]
    wishes.request_move(session, node, target, now=NOW)
    changes.settle_node(session, node, NodeState.DETACHING, why="Asked for.", now=NOW)
    wishes.settle_moved(session, node, target, image="2.0.0", why="Drained.", now=NOW)
    assert (node.state, node.cluster_id, node.group_name, node.move_to) == (NodeState.ATTACHING, there.id, "theirs", None)
    assert (node.starts, node.image, node.lifecycle_done) == (1, "2.0.0", False)
    assert (node.id, node.instance_id, node.logical_id, node.address) == ids


def test_a_replacement_remembers_how_many_hosts_came_to_nothing_before_it(session: Session) -> None:
    node = rows.node(session, rows.cluster(session))
    wishes.request_replacement(session, node, why="a fault", failures=3, now=NOW)
    assert node.facts["failures"] == 3
