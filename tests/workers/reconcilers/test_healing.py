"""From a fault to its end: real rows, a simulated provider, faults as agents report them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from api.auth import Caller
from api.operations import conditions as use_cases
from api.operations.hardware_reports import TELL
from api.operations.work import Work
from everstep.hardware import Device, FaultClass, HardwareFault, HardwareReport, HardwareState
from models.access.states import Role
from models.cluster.table import Cluster
from models.condition import queries
from models.condition.states import ConditionState
from models.events import Event
from models.job.states import ProcessState
from models.node import queries as nodes
from models.node import wishes
from models.node.labels import FAULT_REASONS, FAULT_TYPES, HEALTH, TAINT
from models.node.states import NodeState, Schedulability
from models.node.table import Node
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane


def until(plane: SmallPlane, claim, seconds: float = 120.0) -> None:
    """Time passes in longer steps than the plane's own: what is waited for takes several."""
    for _ in range(int(seconds)):
        if claim():
            return
        plane.run(1, every=1)
    raise AssertionError(f"not within {seconds} s: {plane.states()}")


KINDS = {
    "xid:31": (FaultClass.APPLICATION, "NvidiaGPUUnhealthy", "XidUserAppError"),
    "xid:94": (FaultClass.TRANSIENT, "NvidiaGPUUnhealthy", "NvidiaGpuXidRestartApp"),
    "xid:73": (FaultClass.REBOOT, "NvidiaErrorReboot", "XidHardwareFailure"),
    "xid:74": (FaultClass.REPLACE, "NvidiaErrorTerminate", "NvidiaGpuXidErrorPendingReplacement"),
    "xid:79": (FaultClass.REPLACE, "NvidiaErrorTerminate", "NvidiaGpuXidErrorPendingReplacement"),
    "xid:999": (FaultClass.UNKNOWN, "NvidiaGPUUnhealthy", "XidNotKnown"),
}


def fault(
    plane: SmallPlane, node: Node, code: str, *, name: str = "f1", device: str | None = "GPU-0", pid: int | None = None
) -> None:
    """The node's agent reports a fault."""
    fault_class, type_, reason = KINDS[code]
    told = HardwareFault(name, "nvidia", code, fault_class, type_, reason, f"NVRM: {code}", plane.clock.at.timestamp(), device, pid)
    tell(plane, node, told)


def tell(plane: SmallPlane, node: Node, report: HardwareFault | HardwareReport) -> None:
    with unit_of_work(plane.sessions) as session:
        TELL[type(report)](session, nodes.get(session, node.id, lock=True), report, plane.clock.at)


def devices(count: int, expected: int | None, state: HardwareState = HardwareState.HEALTHY, at: float = 1.0) -> HardwareReport:
    found = tuple(Device(f"GPU-{index}", index, "H200", 141_000) for index in range(count))
    return HardwareReport("nvidia", state, found, f"{count} devices", at, expected)


def conditions(plane: SmallPlane, node: Node):
    with unit_of_work(plane.sessions) as session:
        return list(reversed(queries.of_node(session, node.id)))


def events(plane: SmallPlane, *, node: Node | None = None, about: str | None = None) -> list[str]:
    with unit_of_work(plane.sessions) as session:
        wanted = select(Event).order_by(Event.sequence)
        if node is not None:
            wanted = wanted.where(Event.node_id == node.id)
        return [event.name for event in session.scalars(wanted) if about is None or event.about == about]


def work_of(plane: SmallPlane, session) -> Work:
    caller = Caller(name="ops", key_id="AKIAOPS", account_id="123456789012", role=Role.ADMIN)
    return Work(session, plane.clock.at, "us-east-1", caller)


def label(plane: SmallPlane, node: Node, *, removed: tuple[str, ...] = (), **labels: str) -> None:
    names = {"health": HEALTH}
    with unit_of_work(plane.sessions) as session:
        wish = {names.get(name, name): value for name, value in labels.items()}
        use_cases.label(work_of(plane, session), use_cases.Labelling("c1", str(node.instance_id), wish, removed))


def set_recovery(plane: SmallPlane, value: str) -> None:
    with unit_of_work(plane.sessions) as session:
        cluster = session.query(Cluster).one()
        cluster.settings = {**cluster.settings, "NodeRecovery": value}
        wishes.request_look(session, cluster.id, now=plane.clock.at)


def at_place(plane: SmallPlane, cluster_id: str, node: Node) -> Node | None:
    """Whoever fills the node's place now, as far as it serves."""
    found = [one for one in plane.nodes(cluster_id) if one.logical_id == node.logical_id and one.state is NodeState.READY]
    return found[0] if found else None


def is_replaced(plane: SmallPlane, cluster_id: str, node: Node):
    return lambda: (now := at_place(plane, cluster_id, node)) is not None and now.id != node.id


@pytest.mark.parametrize("code", ["xid:74", "xid:79"])
def test_a_fault_that_calls_for_another_host_shows_at_once_and_the_place_keeps_its_logical_id(plane, code):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    fault(plane, node, code)
    plane.work()  # no time passes
    hurt = plane.node(node.id)
    assert hurt.schedulability is Schedulability.PENDING_REPLACEMENT
    assert hurt.labels[HEALTH] == "UnschedulablePendingReplacement"
    assert hurt.labels[FAULT_TYPES] == "NvidiaErrorTerminate"
    assert hurt.labels[FAULT_REASONS] == "NvidiaGpuXidErrorPendingReplacement"
    assert TAINT in hurt.taints
    assert {"fault reported", "node unschedulable", "replacement requested"} <= set(events(plane, node=node))
    launched = [one for one in plane.nodes(cluster_id) if one.logical_id == node.logical_id and one.id != node.id]
    assert [one.state for one in launched] == [NodeState.BOOTING]  # the launch was called within the same moment
    until(plane, is_replaced(plane, cluster_id, node))
    (row,) = conditions(plane, node)
    assert (row.state, row.repair.value) == (ConditionState.RESOLVED, "replace")


def test_a_reboot_fault_reboots_and_the_same_again_within_the_window_replaces(plane):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    fault(plane, node, "xid:73")
    plane.work()
    assert plane.node(node.id).labels[HEALTH] == "UnschedulablePendingReboot"
    until(plane, lambda: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == 1)
    plane.run(1)
    well = plane.node(node.id)
    assert (well.schedulability, well.labels[HEALTH], well.taints) == (Schedulability.SCHEDULABLE, "Schedulable", [])
    assert well.leave_why is None
    plane.clock.at += timedelta(hours=23)
    plane.listen()
    plane.run(1)
    fault(plane, node, "xid:73", name="f2")
    until(plane, is_replaced(plane, cluster_id, node))
    assert [row.repair.value for row in conditions(plane, node)] == ["reboot", "replace"]


def test_the_same_fault_after_the_window_is_one_more_reboot(plane):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    for start, name in enumerate(("f1", "f2"), start=1):
        fault(plane, node, "xid:73", name=name)
        until(plane, lambda start=start: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == start)
        plane.run(1)
        plane.clock.at += timedelta(hours=25)
        plane.listen()
        plane.run(1)
    assert [row.repair.value for row in conditions(plane, node)] == ["reboot", "reboot"]


def test_an_application_fault_costs_no_node_and_the_job_is_told_which_rank(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, replicas=3, spares=1)
    member = plane.members(job_id)[1]
    node = plane.node(member.node_id)
    fault(plane, node, "xid:31", pid=member.pid)
    plane.run(2)
    assert plane.node(node.id).schedulability is Schedulability.SCHEDULABLE
    assert plane.members(job_id)[1].id == member.id
    assert plane.members(job_id)[1].device_fault.startswith("Rank 1: XidUserAppError (xid:31) on GPU-0")
    assert "accelerator fault" in events(plane)
    assert [row.state for row in conditions(plane, node)] == [ConditionState.RESOLVED]


def test_a_job_that_fails_after_an_application_fault_says_which_rank_it_was(plane):
    cluster_id = plane.serving(3)
    job_id = plane.training(cluster_id, replicas=3, spares=0, max_restarts=0)
    member = plane.members(job_id)[2]
    fault(plane, plane.node(member.node_id), "xid:31", pid=member.pid)
    plane.exit(member.id, signal=6)
    until(plane, lambda: plane.job_state(job_id).value == "failed")
    assert "Rank 2" in plane.job_row(job_id).failure
    assert "xid:31" in plane.job_row(job_id).failure
    assert plane.states()["node"] == ["ready"] * 3


def test_a_transient_fault_restarts_the_process_that_it_struck_and_nothing_else(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, replicas=3, spares=0, max_restarts=0)
    before = plane.members(job_id)
    node = plane.node(before[1].node_id)
    fault(plane, node, "xid:94", pid=before[1].pid)
    until(plane, lambda: plane.members(job_id)[1].id != before[1].id)
    plane.run(5)
    after = plane.members(job_id)
    assert (after[0].id, after[2].id) == (before[0].id, before[2].id)
    assert [one.state for one in plane.processes(job_id) if one.id == before[1].id] == [ProcessState.LOST]
    assert plane.node(node.id).schedulability is Schedulability.SCHEDULABLE
    assert plane.job_row(job_id).restarts == 0


def test_a_transient_fault_of_a_process_that_is_none_of_ours_restarts_nothing(plane):
    cluster_id = plane.serving(3)
    job_id = plane.training(cluster_id, replicas=3, spares=0)
    before = plane.members(job_id)
    node = plane.node(before[1].node_id)
    fault(plane, node, "xid:94", pid=before[1].pid + 1)
    plane.run(5)
    assert [row.state for row in conditions(plane, node)] == [ConditionState.RESOLVED]
    assert [one.id for one in plane.members(job_id)] == [one.id for one in before]


def test_a_fault_that_is_told_twice_is_one_condition(plane):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    set_recovery(plane, "None")
    for name in ("f1", "f1", "f2"):
        fault(plane, node, "xid:73", name=name)
    plane.run(1)
    (row,) = conditions(plane, node)
    assert row.seen == 2
    assert events(plane, node=node).count("fault reported") == 1


@pytest.mark.parametrize("wish", ["reboot", "replacement"])
def test_without_node_recovery_labels_appear_and_only_what_people_ask_for_is_done(plane, wish):
    cluster_id = plane.serving(2)
    set_recovery(plane, "None")
    node = plane.nodes(cluster_id)[0]
    fault(plane, node, "xid:73")
    plane.run(120, every=5)
    hurt = plane.node(node.id)
    assert (hurt.state, hurt.restart, hurt.is_wanted) == (NodeState.READY, None, True)
    assert (hurt.labels[HEALTH], TAINT in hurt.taints) == ("UnschedulablePendingReboot", True)
    assert [row.state for row in conditions(plane, node)] == [ConditionState.HELD]
    with unit_of_work(plane.sessions) as session:
        getattr(wishes, f"request_{wish}")(session, nodes.get(session, node.id, lock=True), why="a person", now=plane.clock.at)
    if wish == "reboot":
        until(plane, lambda: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == 1)
        plane.run(1)
        assert plane.node(node.id).schedulability is Schedulability.SCHEDULABLE
    else:
        until(plane, is_replaced(plane, cluster_id, node))
    assert [row.state for row in conditions(plane, node)] == [ConditionState.RESOLVED]


def test_a_repair_begins_when_node_recovery_is_switched_on(plane):
    cluster_id = plane.serving(2)
    set_recovery(plane, "None")
    node = plane.nodes(cluster_id)[0]
    fault(plane, node, "xid:74")
    plane.run(5)
    set_recovery(plane, "Automatic")
    until(plane, is_replaced(plane, cluster_id, node))


@pytest.mark.parametrize("word", ["UnschedulablePendingReboot", "UnschedulablePendingReplacement"])
def test_a_node_that_is_labelled_by_hand_goes_the_way_of_one_with_a_fault(plane, word):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    label(plane, node, health=word)
    plane.work()
    hurt = plane.node(node.id)
    assert (hurt.labels[HEALTH], TAINT in hurt.taints) == (word, True)
    if word.endswith("Reboot"):
        until(plane, lambda: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == 1)
    else:
        until(plane, is_replaced(plane, cluster_id, node))


def test_the_label_schedulable_ends_what_is_held(plane):
    cluster_id = plane.serving(1)
    set_recovery(plane, "None")
    (node,) = plane.nodes(cluster_id)
    fault(plane, node, "xid:73")
    plane.run(1)
    label(plane, node, health="Schedulable")
    plane.run(1)
    well = plane.node(node.id)
    assert (well.schedulability, well.labels[HEALTH], well.taints, well.host_start) == (
        Schedulability.SCHEDULABLE,
        "Schedulable",
        [],
        0,
    )


def test_a_label_of_the_group_that_is_taken_off_by_hand_is_put_on_again(plane):
    cluster_id = plane.serving(1)
    (node,) = plane.nodes(cluster_id)
    declared = {"Labels": {"tier": "gold"}, "Taints": [{"Key": "only", "Value": "us", "Effect": "NoSchedule"}]}
    declare(plane, declared)
    plane.run(0.5)
    assert plane.node(node.id).labels["tier"] == "gold"
    assert plane.node(node.id).taints == declared["Taints"]
    label(plane, node, removed=("tier",), mine="too")
    plane.work()
    assert (plane.node(node.id).labels["tier"], plane.node(node.id).labels["mine"]) == ("gold", "too")
    with unit_of_work(plane.sessions) as session:
        nodes.get(session, node.id, lock=True).taints = []
        wishes.request_look(session, cluster_id, now=plane.clock.at)
    plane.work()
    assert plane.node(node.id).taints == declared["Taints"]
    declare(plane, {})
    plane.work()
    assert "tier" not in plane.node(node.id).labels
    assert (plane.node(node.id).labels["mine"], plane.node(node.id).taints) == ("too", [])


def declare(plane: SmallPlane, config: dict) -> None:
    with unit_of_work(plane.sessions) as session:
        (group,) = use_cases.clusters.groups(session, session.query(Cluster).one().id)
        group.spec = {**group.spec, "KubernetesConfig": config}
        wishes.request_look(session, group.cluster_id, now=plane.clock.at)


def test_devices_that_are_missing_are_suspected_first_and_cost_a_reboot_when_they_stay_missing(plane):
    cluster_id = plane.serving(2)
    node = plane.nodes(cluster_id)[0]
    tell(plane, node, devices(7, 8))
    plane.run(2)
    assert [row.state for row in conditions(plane, node)] == [ConditionState.SUSPECTED]
    assert plane.node(node.id).schedulability is Schedulability.SCHEDULABLE
    tell(plane, node, devices(8, 8, at=2.0))
    plane.run(1)
    assert [row.state for row in conditions(plane, node)] == [ConditionState.WITHDRAWN]
    tell(plane, node, devices(7, 8, at=3.0))
    until(plane, lambda: plane.node(node.id).state is NodeState.READY and plane.node(node.id).host_start == 1, seconds=60)


def test_a_monitor_that_cannot_tell_is_told_of_and_costs_nothing(plane):
    cluster_id = plane.serving(1)
    (node,) = plane.nodes(cluster_id)
    tell(plane, node, devices(0, 8, HardwareState.UNKNOWN))
    plane.run(60, every=5)
    assert [row.state for row in conditions(plane, node)] == [ConditionState.SUSPECTED]
    assert (plane.node(node.id).schedulability, plane.node(node.id).host_start) == (Schedulability.SCHEDULABLE, 0)
    tell(plane, node, devices(8, 8, at=2.0))
    assert [row.state for row in conditions(plane, node)] == [ConditionState.WITHDRAWN]


def test_a_code_that_nobody_knows_keeps_work_away_for_a_while_and_no_longer(plane):
    cluster_id = plane.serving(1)
    (node,) = plane.nodes(cluster_id)
    fault(plane, node, "xid:999")
    plane.run(1)
    assert plane.node(node.id).labels[HEALTH] == "Unschedulable"
    plane.clock.at += timedelta(hours=1)
    plane.listen()
    plane.run(1)
    assert (plane.node(node.id).labels[HEALTH], plane.node(node.id).host_start) == ("Schedulable", 0)


def test_work_leaves_a_host_that_still_works_before_it_is_replaced_and_its_limit_is_kept(plane):
    cluster_id = plane.serving(3)
    job_id = plane.training(cluster_id, replicas=3, spares=0)
    node = plane.node(plane.members(job_id)[0].node_id)
    fault(plane, node, "xid:74")
    plane.work()
    told = plane.node(node.id)
    assert told.leave_by == plane.clock.at + timedelta(minutes=2)
    assert "node leaving" in events(plane, node=node)
    until(plane, is_replaced(plane, cluster_id, node), seconds=240)


def test_a_device_off_the_bus_is_not_waited_for(plane):
    cluster_id = plane.serving(3)
    job_id = plane.training(cluster_id, replicas=3, spares=0)
    node = plane.node(plane.members(job_id)[0].node_id)
    fault(plane, node, "xid:79")
    plane.work()
    assert plane.node(node.id).is_wanted is False
    assert [one.state for one in plane.nodes(cluster_id) if one.logical_id == node.logical_id and one.id != node.id] == [
        NodeState.BOOTING
    ]
    until(plane, is_replaced(plane, cluster_id, node), seconds=10)
