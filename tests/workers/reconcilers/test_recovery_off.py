"""``NodeRecovery: None``: nothing is begun by itself, and what has been begun goes no further than it must."""

from __future__ import annotations

from datetime import timedelta

import pytest

from models.condition.states import ConditionState
from models.node.labels import HEALTH
from models.node.states import NodeState
from tests.workers.reconcilers.test_healing import conditions, fault, set_recovery
from tests.workers.reconcilers.test_spot import announce, serving, spot_group, until, withdraw
from tests.workers.small_plane import SmallPlane
from workers.providers.base import HostRef


def taken_back(plane: SmallPlane) -> tuple[str, str]:
    """A cluster one of whose nodes was to be taken by its provider, which has thought better of it: the node, and that the other one went."""
    cluster_id = serving(plane, spot_group(count=2))
    set_recovery(plane, "None")
    struck = plane.nodes(cluster_id)[0]
    announce(plane, struck.id)
    until(plane, lambda: len(plane.nodes(cluster_id)) == 3)
    withdraw(plane, struck.id)
    until(plane, lambda: plane.states()["node"] == ["ready"] * 2)
    return cluster_id, struck.id


def test_a_node_that_is_lost_after_a_notice_was_taken_back_is_left_alone_like_any_other(plane):
    cluster_id, struck_id = taken_back(plane)
    for node in plane.nodes(cluster_id):
        plane.die(node.instance_id)
        plane.provider.release(HostRef(node.id, node.instance_id))
    until(plane, lambda: plane.nodes(cluster_id) == [])
    assert plane.node(struck_id).state is NodeState.GONE
    plane.run(20, every=5)
    assert plane.nodes(cluster_id) == []


@pytest.mark.parametrize("code", ["xid:73", "xid:74"])
def test_work_that_was_told_to_leave_stays_when_recovery_is_switched_off(plane, code):
    cluster_id = plane.serving(3)
    job_id = plane.training(cluster_id, replicas=3, spares=0)
    node_id = plane.members(job_id)[0].node_id
    fault(plane, plane.node(node_id), code)
    for _ in range(3):
        plane.reconcile("node", node_id)
    assert plane.node(node_id).leave_why is not None
    set_recovery(plane, "None")
    plane.run(2, every=1)
    plane.clock.at += timedelta(minutes=3)
    plane.listen()
    plane.run(4, every=2)
    held = plane.node(node_id)
    assert (held.state, held.is_wanted, held.leave_why, held.host_start) == (NodeState.READY, True, None, 0)
    assert held.labels[HEALTH].startswith("UnschedulablePending")
    assert [row.state for row in conditions(plane, held)] == [ConditionState.HELD]
    assert node_id in {member.node_id for member in plane.members(job_id)}


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_reboot_that_the_provider_was_not_asked_for_is_called_off_and_one_that_was_is_waited_for(plane, has_begun):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    fault(plane, node, "xid:73")
    while plane.node(node.id).state is not (NodeState.REBOOTING if has_begun else NodeState.DRAINING):
        plane.reconcile("node", node.id)
    set_recovery(plane, "None")
    plane.run(10, every=1)
    there = plane.node(node.id)
    assert (there.state, there.restart, there.host_start) == (NodeState.READY, None, int(has_begun))
    assert [row.state for row in conditions(plane, there)] == [ConditionState.RESOLVED if has_begun else ConditionState.HELD]
    set_recovery(plane, "Automatic")
    until(plane, lambda: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == 1)
