"""Transient faults that come again and again on one device."""

from __future__ import annotations

from datetime import timedelta

from models.condition.states import FaultClass
from models.node.states import NodeState
from tests.workers.reconcilers.test_healing import conditions, fault
from tests.workers.small_plane import SmallPlane


def strike(plane: SmallPlane, node_id: str, name: str, device: str = "GPU-0") -> None:
    fault(plane, plane.node(node_id), "xid:94", name=name, device=device)
    for _ in range(3):
        plane.reconcile("node", node_id)
    plane.clock.at += timedelta(minutes=5)
    plane.listen()


def repairs(plane: SmallPlane, node_id: str) -> list[str]:
    return [row.repair.value for row in conditions(plane, plane.node(node_id))]


def test_the_third_on_one_device_within_the_window_has_the_host_started_anew_and_then_the_count_begins_again(plane):
    node = plane.nodes(plane.serving(2))[0]
    for name, device in (("f1", "GPU-0"), ("f2", "GPU-1"), ("f3", "GPU-0")):
        strike(plane, node.id, name, device)
    plane.clock.at += timedelta(hours=24)
    plane.listen()
    plane.run(1)
    strike(plane, node.id, "f4")
    assert repairs(plane, node.id) == ["process"] * 4
    strike(plane, node.id, "f5")
    strike(plane, node.id, "f6")
    assert repairs(plane, node.id) == ["process"] * 5 + ["reboot"]
    plane.run_until(lambda: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == 1)
    strike(plane, node.id, "f7")
    assert repairs(plane, node.id)[-1] == "process"
    assert {row.fault_class for row in conditions(plane, node)} == {FaultClass.TRANSIENT}
