"""Deep health checks, asked for through boto3 and carried out by the workers: real rows, a simulated provider, agents that answer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from models.clock import WallClock
from models.cluster import queries as clusters
from models.health.table import NodeCheck
from models.job.states import JobState
from models.node.states import NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from tests.api.installed import needs
from tests.api.serving import group
from tests.workers.small_plane import SmallPlane, TestClock

STRESS = {"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}


@pytest.fixture
def plane(server, sessions, listen) -> SmallPlane:
    needs("ListClusterOperations")
    return SmallPlane(sessions, listen(NUDGE), clock=TestClock(WallClock().now()))


def serving(plane: SmallPlane, sagemaker: Any, count: int = 2, recovery: str = "Automatic", **members: Any) -> str:
    """The id of a continuous cluster in service."""
    arn = sagemaker.create_cluster(
        ClusterName="c1",
        InstanceGroups=[group("workers", count, **members)],
        NodeProvisioningMode="Continuous",
        NodeRecovery=recovery,
    )["ClusterArn"]
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * count and plane.states()["group"] == ["in_service"])
    return arn.rpartition("/")[2]


def start(sagemaker: Any, *checks: dict[str, Any]) -> None:
    sagemaker.start_cluster_health_check(ClusterName="c1", DeepHealthCheckConfigurations=list(checks or (STRESS,)))


def operation(sagemaker: Any) -> dict[str, Any]:
    (listed,) = sagemaker.list_cluster_operations(ClusterName="c1", Type="DeepHealthCheck")["ClusterOperationSummaries"]
    return sagemaker.describe_cluster_operation(ClusterName="c1", OperationId=listed["OperationId"])


def statuses(sagemaker: Any) -> list[str]:
    listed = sagemaker.list_cluster_nodes(ClusterName="c1")["ClusterNodeSummaries"]
    return sorted(node["InstanceStatus"]["Status"] for node in listed)


def test_nodes_are_examined_shown_so_and_the_operation_is_done(plane, sagemaker):
    serving(plane, sagemaker)
    start(sagemaker)
    plane.work()
    assert statuses(sagemaker) == ["DeepHealthCheckInProgress"] * 2
    assert operation(sagemaker)["Status"] == "InProgress"
    assert operation(sagemaker)["DeepHealthCheckDetails"] == [STRESS]
    with pytest.raises(sagemaker.exceptions.ClientError, match="is running deep health checks") as second:
        start(sagemaker)
    assert second.value.response["Error"]["Code"] == "ConflictException"
    with pytest.raises(sagemaker.exceptions.ConflictException, match="is running deep health checks"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("workers", 3)])
    plane.run_until(lambda: operation(sagemaker)["Status"] == "Done")
    assert statuses(sagemaker) == ["Running"] * 2
    told = sagemaker.list_cluster_events(ClusterName="c1", OperationId=operation(sagemaker)["OperationId"])["Events"]
    words = [event["Description"] for event in told]
    assert "Deep health checks of 2 nodes ended: 2 passed, 0 failed, 0 skipped." in words
    assert sum("Deep health checks passed: all is well" in word for word in words) == 2


def test_a_node_that_fails_is_replaced_under_its_logical_id_and_the_event_says_what_was_measured(plane, sagemaker):
    cluster_id = serving(plane, sagemaker)
    ill = plane.nodes(cluster_id)[0]
    plane.ill[ill.instance_id] = "InstanceStress: disk is 3 MiB/s, it must be at least 5 MiB/s"
    start(sagemaker, STRESS | {"InstanceIds": [ill.instance_id]})
    plane.run_until(lambda: operation(sagemaker)["Status"] == "Done")
    plane.run_until(lambda: statuses(sagemaker) == ["Running"] * 2)
    after = [node for node in plane.nodes(cluster_id) if node.is_wanted]
    assert {node.logical_id for node in after} >= {ill.logical_id}
    assert ill.instance_id not in {node.instance_id for node in after}
    failures = [one for one in sagemaker.list_cluster_events(ClusterName="c1")["Events"] if one["EventLevel"] == "Error"]
    assert any("disk is 3 MiB/s, it must be at least 5 MiB/s" in one["Description"] for one in failures)


def test_without_node_recovery_a_node_that_fails_takes_no_work_until_it_is_started_anew(plane, sagemaker):
    cluster_id = serving(plane, sagemaker, recovery="None")
    ill = plane.nodes(cluster_id)[0]
    plane.ill[ill.instance_id] = "InstanceStress: memory did not hold what was written"
    start(sagemaker)
    plane.run_until(lambda: operation(sagemaker)["Status"] == "Done")
    assert statuses(sagemaker) == ["Failure", "Running"]
    job_id = plane.job(cluster_id, replicas=2, spares=0)
    plane.run(5)
    assert plane.job_state(job_id) is JobState.QUEUED
    sagemaker.batch_reboot_cluster_nodes(ClusterName="c1", NodeIds=[ill.instance_id])
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)


def test_running_work_is_not_disturbed_and_a_node_that_stays_busy_is_left_out(plane, sagemaker):
    cluster_id = serving(plane, sagemaker)
    job_id = plane.training(cluster_id, replicas=1, spares=0)
    busy = plane.members(job_id)[0].node_id
    start(sagemaker)
    plane.run(5)
    assert plane.node(busy).held_for is None
    with unit_of_work(plane.sessions) as session:
        for check in session.query(NodeCheck):
            check.created_at -= timedelta(minutes=10)
    plane.run_until(lambda: operation(sagemaker)["Status"] == "Done")
    assert plane.job_state(job_id) is JobState.TRAINING
    skipped = [one for one in sagemaker.list_cluster_events(ClusterName="c1")["Events"] if "skipped" in one["Description"]]
    assert "After 10 minutes it still had work." in skipped[-1]["Description"]


def test_nodes_that_start_are_examined_before_work_and_only_once(plane, sagemaker):
    sagemaker.create_cluster(
        ClusterName="c1",
        InstanceGroups=[group("workers", 1, OnStartDeepHealthChecks=["InstanceStress"])],
        NodeProvisioningMode="Continuous",
    )
    cluster_id = _created(plane)
    plane.run_until(lambda: plane.states()["node"] == ["ready"])
    assert statuses(sagemaker) == ["DeepHealthCheckInProgress"]
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "InService"
    job_id = plane.job(cluster_id, replicas=1, spares=0)
    (node,) = plane.nodes(cluster_id)
    assert plane.node(node.id).held_for is not None
    plane.work()
    assert plane.job_state(job_id) is JobState.QUEUED
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    assert statuses(sagemaker) == ["Running"]
    assert sagemaker.list_cluster_operations(ClusterName="c1", Type="DeepHealthCheck")["ClusterOperationSummaries"] == []


def _created(plane: SmallPlane) -> str:
    with unit_of_work(plane.sessions) as session:
        return clusters.find(session, "c1").id


def test_what_is_not_there_or_named_twice_is_refused_by_name(plane, sagemaker):
    cluster_id = serving(plane, sagemaker, 1)
    instance = plane.nodes(cluster_id)[0].instance_id
    for checks, told in (
        ([STRESS | {"InstanceGroupName": "x"}], "Instance group 'x' in DeepHealthCheckConfigurations does not exist"),
        ([STRESS, STRESS], "names instance group 'workers' twice"),
        ([STRESS | {"InstanceIds": [f"i-{7:017x}"]}], "is not one of instance group 'workers'"),
        ([STRESS | {"InstanceIds": [instance, instance]}], "twice"),
    ):
        with pytest.raises(sagemaker.exceptions.ClientError, match="ValidationException") as refused:
            start(sagemaker, *checks)
        assert told in str(refused.value)


def test_a_check_ends_with_its_cluster_and_with_nodes_that_go(plane, sagemaker):
    cluster_id = serving(plane, sagemaker)
    plane.dead.update(str(node.instance_id) for node in plane.nodes(cluster_id))
    start(sagemaker)
    plane.work()
    plane.die(plane.nodes(cluster_id)[0].instance_id)
    plane.run(3)
    sagemaker.delete_cluster(ClusterName="c1")
    plane.run_until(lambda: not plane.provider.hosts())
    assert NodeState.READY.value not in plane.states()["node"]
