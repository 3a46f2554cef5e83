"""What was asked of a cluster: its operations, and the events that belong to them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from models.clock import WallClock
from models.cluster import queries as clusters
from models.events import OF_CLUSTERS, Event
from models.ids import InstanceId
from models.node.changes import report_lifecycle, report_lifecycle_started, settle_launched, settle_wanted_node
from models.operation.table import Operation
from models.session import Sessions, unit_of_work
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.installed import knows, needs
from tests.api.serving import group

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def c1(sagemaker, sessions: Sessions) -> str:
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a", 2)], NodeProvisioningMode="Continuous")[
        "ClusterArn"
    ]
    as_it_comes_into_service(sessions, "c1")
    return arn


def operations(sagemaker: Any, **members: Any) -> list[dict[str, Any]]:
    needs("ListClusterOperations")
    return sagemaker.list_cluster_operations(ClusterName="c1", **members)["ClusterOperationSummaries"]


def test_an_update_supersedes_the_scaling_before_it_and_both_are_listed_newest_first(sagemaker, c1):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 3)])
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 4), group("b", 1)])
    listed = operations(sagemaker)
    assert [(one["Type"], one["Status"]) for one in listed] == [
        ("Scaling", "InProgress"),
        ("Scaling", "Superseded"),
        ("Scaling", "Done"),
    ]
    assert [one["OperationId"] for one in operations(sagemaker, SortOrder="Ascending")] == [
        one["OperationId"] for one in listed[::-1]
    ]
    assert [one["OperationId"] for one in operations(sagemaker, Status="Done")] == [listed[2]["OperationId"]]
    assert operations(sagemaker, Type="DeepHealthCheck") == []
    pages = sagemaker.get_paginator("list_cluster_operations").paginate(ClusterName="c1", PaginationConfig={"PageSize": 1})
    assert [one for page in pages for one in page["ClusterOperationSummaries"]] == listed


def test_a_scaling_tells_its_groups_as_they_were_and_as_they_are_wished_for(sagemaker, c1):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 5), group("b", 1)])
    (newest, *_) = operations(sagemaker)
    described = sagemaker.describe_cluster_operation(ClusterName=c1, OperationId=newest["OperationId"])
    assert described["ClusterArn"] == c1
    assert described["ScalingDetails"] == [
        {
            "InstanceGroupName": "a",
            "Status": "InProgress",
            "Original": {"CurrentCount": 0, "TargetCount": 2, "MinCount": 0},
            "Desired": {"TargetCount": 5, "MinCount": 0},
        },
        {
            "InstanceGroupName": "b",
            "Status": "InProgress",
            "Original": {"CurrentCount": 0, "TargetCount": 0, "MinCount": 0},
            "Desired": {"TargetCount": 1, "MinCount": 0},
        },
    ]


def test_what_the_api_has_no_word_for_is_not_listed_but_its_events_are_found(sagemaker, sessions, c1):
    sagemaker.delete_cluster(ClusterName="c1")
    assert {one["Type"] for one in operations(sagemaker)} == {"Scaling"}
    with unit_of_work(sessions) as session:
        (deletion,) = session.query(Operation).filter_by(type="Deletion")
    told = sagemaker.list_cluster_events(ClusterName="c1", OperationId=deletion.id)["Events"]
    assert [event["Description"] for event in told] == ["Deletion of cluster c1 started."]
    with pytest.raises(ClientError) as refused:
        sagemaker.describe_cluster_operation(ClusterName="c1", OperationId=deletion.id)
    assert refused.value.response["Error"]["Code"] == "ResourceNotFound"


def test_an_operation_can_be_looked_up_for_two_weeks(sagemaker, sessions, c1):
    (done,) = operations(sagemaker)
    with unit_of_work(sessions) as session:
        session.get_one(Operation, done["OperationId"]).created_at = WallClock().now() - timedelta(days=14, seconds=1)
    assert operations(sagemaker) == []
    with pytest.raises(sagemaker.exceptions.ResourceNotFound):
        sagemaker.describe_cluster_operation(ClusterName="c1", OperationId=done["OperationId"])


@pytest.mark.parametrize(
    "operation, member", [("describe_cluster_operation", "OperationId"), ("describe_cluster_event", "EventId")]
)
def test_an_id_of_nothing_and_one_of_another_cluster_are_not_found(sagemaker, sessions, c1, operation, member):
    sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()], NodeProvisioningMode="Continuous")
    own = {"OperationId": operations(sagemaker)[0]["OperationId"], "EventId": _events(sagemaker)[0]["EventId"]}[member]
    for name, row_id in (("c1", UNKNOWN), ("c2", own)):
        with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="does not exist"):
            getattr(sagemaker, operation)(ClusterName=name, **{member: row_id})


def _events(sagemaker: Any, **members: Any) -> list[dict[str, Any]]:
    return sagemaker.list_cluster_events(ClusterName="c1", SortOrder="Ascending", **members)["Events"]


def test_every_change_of_state_is_one_event_with_the_id_of_what_was_asked_for(sagemaker, sessions, c1):
    (done,) = operations(sagemaker)
    told = _events(sagemaker)
    assert {event["OperationId"] for event in told} == {done["OperationId"]}
    assert [event["ResourceType"] for event in told] == ["Cluster", "InstanceGroup", "Cluster"]
    with unit_of_work(sessions) as session:
        names = [event.name for event in session.query(Event).order_by(Event.sequence) if event.about in OF_CLUSTERS]
    assert names == ["creation requested", "group in_service", "cluster in_service"]


def test_an_event_in_detail_has_exactly_one_kind_of_metadata(sagemaker, sessions, c1):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 3)])
    with unit_of_work(sessions) as session:
        (wanted,) = clusters.groups(session, clusters.find(session, "c1").id)
        node = settle_wanted_node(session, wanted, now=WallClock().now())
        settle_launched(session, node, instance_id=InstanceId(f"i-{7:017x}"), address="127.77.0.7", now=WallClock().now())
        report_lifecycle_started(session, node, script="on_create.sh", attempt=1, now=WallClock().now())
        report_lifecycle(session, node, exit_code=3, tail="no such disk", now=WallClock().now())
        logical_id = node.logical_id
    details = [
        sagemaker.describe_cluster_event(ClusterName="c1", EventId=event["EventId"])["EventDetails"] for event in _events(sagemaker)
    ]
    metadata = [one["EventDetails"]["EventMetadata"] for one in details]
    assert all(len(one) == 1 for one in metadata)
    assert metadata[0] == {"Cluster": {}}
    assert {"InstanceGroupScaling": {"TargetCount": 2, "MinCount": 0}} in metadata
    of_node = [one for one in details if one["ResourceType"] == "Instance"]
    started, failed = of_node[-2:]
    assert started["EventDetails"]["EventMetadata"] == {"Instance": {"LcsExecutionState": "Started", "NodeLogicalId": logical_id}}
    assert failed["EventDetails"]["EventMetadata"] == {
        "Instance": {"FailureMessage": failed["Description"], "LcsExecutionState": "Failed", "NodeLogicalId": logical_id}
    }
    assert "exit code 3: no such disk" in failed["Description"]
    assert knows("ListClusterOperations") == ("OperationId" in failed)
    if "OperationId" in failed:
        assert failed["OperationId"] == operations(sagemaker)[0]["OperationId"]
    assert [e["EventId"] for e in _events(sagemaker, NodeId=f"i-{7:017x}")] == [one["EventId"] for one in of_node]
