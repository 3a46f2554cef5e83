"""Clusters over the wire with reconcilers behind it: one process, one database, a provider that counts its hosts, a clock that is told the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from models.notify import NUDGE
from tests.api.serving import group
from tests.workers.small_plane import SmallPlane, TestClock

CONTINUOUS = {"NodeProvisioningMode": "Continuous"}


@pytest.fixture
def plane(sagemaker, sessions, listen) -> SmallPlane:
    """Its time begins with the server's."""
    return SmallPlane(sessions, listen(NUDGE), clock=TestClock(datetime.now(UTC)))


def told(sagemaker: Any, name: str = "c1", **wanted: Any) -> list[dict[str, Any]]:
    pages = sagemaker.get_paginator("list_cluster_events").paginate(ClusterName=name, SortOrder="Ascending", **wanted)
    return [event for page in pages for event in page["Events"]]


def test_a_cluster_of_two_groups_comes_up_and_every_change_of_state_is_one_event_of_its_operation(sagemaker, plane):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a", 2), group("b", 3)], **CONTINUOUS)
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Creating"
    plane.run_until(lambda: plane.states()["node"].count("ready") == 5)
    plane.run(2)
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert described["ClusterStatus"] == "InService"
    assert [(one["CurrentCount"], one["TargetCount"], one["Status"]) for one in described["InstanceGroups"]] == [
        (2, 2, "InService"),
        (3, 3, "InService"),
    ]
    assert all("ActiveOperations" not in one for one in described["InstanceGroups"])
    events = told(sagemaker)
    moves = [event for event in events if event["Description"].startswith(("The cluster takes", "The group has"))]
    assert [event["ResourceType"] for event in moves].count("Cluster") == 1
    assert sorted(event["InstanceGroupName"] for event in moves if event["ResourceType"] == "InstanceGroup") == ["a", "b"]
    if "OperationId" in events[0]:  # an older model has no word for it
        assert len({event["OperationId"] for event in events}) == 1
        (operation,) = sagemaker.list_cluster_operations(ClusterName="c1")["ClusterOperationSummaries"]
        assert (operation["OperationId"], operation["Status"]) == (events[0]["OperationId"], "Done")


def test_a_group_that_misses_its_minimum_is_back_at_its_earlier_size_and_an_error_event_says_why(sagemaker, plane):
    plane.provider.capacity = 3
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a", 2)], **CONTINUOUS)
    plane.run_until(lambda: plane.states()["node"] == ["ready", "ready"])
    plane.run(2)
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 5, MinInstanceCount=4)])
    plane.run_until(lambda: plane.states()["node"].count("ready") == 3)
    (shown,) = sagemaker.describe_cluster(ClusterName="c1")["InstanceGroups"]
    assert (shown["Status"], shown["TargetCount"], shown["MinCount"]) == ("Updating", 5, 4)
    plane.clock.at += timedelta(hours=3)
    plane.agents()
    plane.run_until(lambda: len(plane.provider.hosts()) == 2)
    described = sagemaker.describe_cluster(ClusterName="c1")
    (shown,) = described["InstanceGroups"]
    assert (shown["Status"], shown["TargetCount"], shown["MinCount"]) == ("InService", 2, 0)
    assert described["ClusterStatus"] == "InService"
    (missed,) = [event for event in told(sagemaker) if "has 3 of the 4 nodes that it must have" in event["Description"]]
    assert missed.get("EventLevel", "Error") == "Error"
    details = sagemaker.describe_cluster_event(ClusterName="c1", EventId=missed["EventId"])["EventDetails"]
    (metadata,) = details["EventDetails"]["EventMetadata"].values()
    assert metadata["FailureMessage"] == missed["Description"]


def test_with_capacity_for_three_of_five_three_are_used_at_once_and_two_are_tried_again(sagemaker, plane):
    plane.provider.capacity = 3
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a", 5)], **CONTINUOUS)
    plane.run_until(lambda: plane.states()["node"].count("ready") == 3)
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert described["ClusterStatus"] == "InService"
    assert described["InstanceGroups"][0]["CurrentCount"] == 3
    assert described["InstanceGroups"][0]["ActiveOperations"] == {"Scaling": 1}
    nodes = sagemaker.list_cluster_nodes(ClusterName="c1", IncludeNodeLogicalIds=True)["ClusterNodeSummaries"]
    assert sorted(node["InstanceStatus"]["Status"] for node in nodes) == ["Pending", "Pending", "Running", "Running", "Running"]
    assert {node["InstanceStatus"]["Message"] for node in nodes if node["InstanceStatus"]["Status"] == "Pending"} == {
        "all 3 hosts are in use"
    }
    plane.provider.capacity = 5
    plane.run_until(lambda: plane.states()["node"].count("ready") == 5)


def test_two_orchestrators_or_two_ways_to_name_types_are_refused_with_the_member_and_nothing_is_made(sagemaker):
    eks = {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k"}
    with pytest.raises(ClientError, match="Orchestrator must contain exactly one of Eks and Slurm"):
        sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], Orchestrator={"Eks": eks, "Slurm": {}})
    both = group(InstanceRequirements={"InstanceTypes": ["ml.c5.large"]})
    with pytest.raises(ClientError, match="'workers' needs exactly one of InstanceType and InstanceRequirements"):
        sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[both], **CONTINUOUS)
    assert sagemaker.list_clusters()["ClusterSummaries"] == []


def test_the_capacity_type_of_a_group_that_is_there_cannot_change(sagemaker, plane):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a", 1, CapacityRequirements={"Spot": {}})], **CONTINUOUS)
    plane.run_until(lambda: plane.states()["node"] == ["ready"])
    with pytest.raises(ClientError, match="Updating fields CapacityRequirements on an InstanceGroup not supported"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 1, CapacityRequirements={"OnDemand": {}})])
    assert sagemaker.describe_cluster(ClusterName="c1")["InstanceGroups"][0]["CapacityRequirements"] == {"Spot": {}}


def test_a_classic_creation_without_capacity_says_group_type_and_zone(sagemaker, plane):
    """R-6: the cause of a creation that was rolled back was hard to find."""
    plane.provider.scarce = {"ml.c5.xlarge": 0}
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("gpus", 1)])
    seen = []
    while not seen or seen[-1] != "Failed":
        plane.run(0.5)
        seen.append(sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"])
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert list(dict.fromkeys(seen)) in (["Creating", "RollingBack", "Failed"], ["RollingBack", "Failed"], ["Failed"])
    assert (
        described["FailureMessage"]
        == "Instance group gpus cannot be provisioned with ml.c5.xlarge in us-east-1a: there are no more ml.c5.xlarge"
    )
    assert plane.provider.hosts() == ()
