"""Faults that are told after the start of the host that cured them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from everstep.hardware import Device, HardwareFault, HardwareReport, HardwareState
from models.condition.states import ConditionState
from models.node.states import NodeState, Schedulability
from models.node.table import Node
from tests.workers.reconcilers.test_healing import KINDS, at_place, conditions, fault, is_replaced, tell, until
from tests.workers.small_plane import SmallPlane


@pytest.fixture
def rebooted(plane) -> tuple[SmallPlane, Node, datetime]:
    """A node that was started anew because of a fault, and when that fault was seen."""
    node = plane.nodes(plane.serving(2))[0]
    seen_at = plane.clock.at
    plane.clock.at += timedelta(seconds=1)
    fault(plane, node, "xid:73")
    until(plane, lambda: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == 1)
    plane.run(1)
    return plane, node, seen_at


def late(plane: SmallPlane, node: Node, at: datetime) -> None:
    fault_class, type_, reason = KINDS["xid:73"]
    tell(plane, node, HardwareFault("f2", "nvidia", "xid:73", fault_class, type_, reason, "NVRM", at.timestamp(), "GPU-0", None))


def clock_is_off(plane: SmallPlane, node: Node, by: timedelta) -> None:
    at = (plane.clock.at + by).timestamp()
    devices = (Device("GPU-0", 0, "H200", 141_000),)
    tell(plane, node, HardwareReport("nvidia", HardwareState.HEALTHY, devices, "1 device", at, None))


@pytest.mark.parametrize("off", [timedelta(0), timedelta(hours=-1), timedelta(hours=1)])
def test_a_fault_of_before_the_reboot_that_is_told_after_it_costs_nothing(rebooted, off):
    plane, node, seen_at = rebooted
    clock_is_off(plane, node, off)
    late(plane, node, seen_at + off)
    plane.run(5, every=1)
    there = plane.node(node.id)
    assert (there.state, there.host_start, there.schedulability) == (NodeState.READY, 1, Schedulability.SCHEDULABLE)
    assert [(row.state, row.repair) for row in conditions(plane, node)][1] == (ConditionState.RESOLVED, None)


@pytest.mark.parametrize("off", [timedelta(0), timedelta(hours=-1), timedelta(hours=1)])
def test_a_fault_of_after_the_reboot_calls_for_another_host_whatever_the_nodes_clock_says(rebooted, off):
    plane, node, _ = rebooted
    clock_is_off(plane, node, off)
    late(plane, node, plane.clock.at + off)
    until(plane, is_replaced(plane, node.cluster_id, node))
    assert at_place(plane, node.cluster_id, node).id != node.id
