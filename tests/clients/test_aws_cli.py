"""The ``aws`` command line from the package index: every command that it has for clusters, and its own paging."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from models.cluster.states import ClusterState
from models.session import Sessions, unit_of_work
from tests import postgres as db
from tests import rows
from tests.api.aws.settling import as_it_comes_into_service, settle
from tests.api.conftest import serving
from tests.api.serving import KEY_ID, ROLE, SECRET, group, settings_for
from tests.clients.aws import Aws, aws_commands, operations_known

SERVICE_REFUSED = 255
"""The exit status of version 1 of the command line for any error of a service."""
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
CREATION = {
    "ClusterName": "c1",
    "InstanceGroups": [
        {
            "InstanceGroupName": "workers",
            "InstanceCount": 6,
            "InstanceType": "ml.c5.xlarge",
            "ExecutionRole": ROLE,
            "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-scripts/x", "OnCreate": "on_create.sh"},
            "KubernetesConfig": {"Labels": {"team": "blue"}},
        }
    ],
    "VpcConfig": VPC,
    "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k8s"}},
    "NodeRecovery": "Automatic",
    "NodeProvisioningMode": "Continuous",
    "Tags": [{"Key": "team", "Value": "blue"}],
}


@pytest.fixture(scope="module")
def database_url(postgres: str) -> Iterator[str]:
    with db.database_of_its_own(postgres) as url:
        yield url


@pytest.fixture(scope="module")
def aws(database_url: str) -> Iterator[Aws]:
    with serving(settings_for(database_url)) as server:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "AWS_ENDPOINT_URL_SAGEMAKER": server.url,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        with aws_commands(environment) as aws:
            yield aws


class Story:
    """Calls operations one after the other, each of which has to go well, and remembers which were called."""

    def __init__(self, aws: Aws) -> None:
        self.aws = aws
        self.called: set[str] = set()

    def __call__(self, operation: str, **members: Any) -> dict[str, Any]:
        self.called.add(operation)
        told = self.aws.call(operation, members)
        assert told.status == 0, f"{operation}: {told.complaint}"
        return told.answer or {}


def test_every_command_for_clusters_is_answered(aws: Aws, sessions: Sessions):
    ask = Story(aws)
    arn = _a_cluster_with_nodes(ask, sessions)
    _pages_are_turned_to_the_end(aws)
    _is_looked_at(ask, arn)
    _is_governed(ask, arn)
    _nodes_are_worked_on(ask, arn)
    _is_changed_and_deleted(ask, sessions, arn)
    assert ask.called == operations_known()


def _a_cluster_with_nodes(ask: Story, sessions: Sessions) -> str:
    skeleton = ask.aws("create-cluster", "--generate-cli-skeleton", "input").answer
    assert _is_within(CREATION, skeleton), "what is sent is a part of what the command line says can be sent"
    arn = ask("CreateCluster", **CREATION)["ClusterArn"]
    with unit_of_work(sessions) as session:
        cluster = rows.clusters.find(session, "c1")
        rows.nodes(session, cluster, 6)
    as_it_comes_into_service(sessions, "c1")
    return str(arn)


def _pages_are_turned_to_the_end(aws: Aws) -> None:
    for command, key in (("list-cluster-nodes", "ClusterNodeSummaries"), ("list-cluster-events", "Events")):
        whole = aws(command, "--cluster-name", "c1").answer[key]
        assert len(whole) >= 6
        assert aws(command, "--cluster-name", "c1", "--page-size", "4").answer[key] == whole


def _is_looked_at(ask: Story, arn: str) -> None:
    assert ask("DescribeCluster", ClusterName=arn)["ClusterStatus"] == "InService"
    assert arn in [one["ClusterArn"] for one in ask("ListClusters")["ClusterSummaries"]]
    node = ask("ListClusterNodes", ClusterName="c1")["ClusterNodeSummaries"][0]["InstanceId"]
    assert ask("DescribeClusterNode", ClusterName="c1", NodeId=node)["NodeDetails"]["InstanceId"] == node
    event = ask("ListClusterEvents", ClusterName="c1")["Events"][0]["EventId"]
    assert ask("DescribeClusterEvent", ClusterName="c1", EventId=event)["EventDetails"]["EventId"] == event
    ask("AddTags", ResourceArn=arn, Tags=[{"Key": "stage", "Value": "test"}])
    ask("DeleteTags", ResourceArn=arn, TagKeys=["team"])
    assert ask("ListTags", ResourceArn=arn)["Tags"] == [{"Key": "stage", "Value": "test"}]


def _is_governed(ask: Story, arn: str) -> None:
    policy = ask("CreateClusterSchedulerConfig", Name="policy", ClusterArn=arn, SchedulerConfig={"FairShare": "Enabled"})
    policy_id = {"ClusterSchedulerConfigId": policy["ClusterSchedulerConfigId"]}
    assert ask("UpdateClusterSchedulerConfig", **policy_id, TargetVersion=1, Description="x")["ClusterSchedulerConfigVersion"] == 2
    assert ask("DescribeClusterSchedulerConfig", **policy_id)["Description"] == "x"
    assert len(ask("ListClusterSchedulerConfigs", ClusterArn=arn)["ClusterSchedulerConfigSummaries"]) == 1
    ask("DeleteClusterSchedulerConfig", **policy_id)
    target = {"ComputeQuotaTarget": {"TeamName": "blue"}}
    config = {"ComputeQuotaResources": [{"InstanceType": "ml.c5.xlarge", "Count": 2}]}
    quota = ask("CreateComputeQuota", Name="quota", ClusterArn=arn, ComputeQuotaConfig=config, **target)
    quota_id = {"ComputeQuotaId": quota["ComputeQuotaId"]}
    assert ask("UpdateComputeQuota", **quota_id, TargetVersion=1, Description="x")["ComputeQuotaVersion"] == 2
    assert ask("DescribeComputeQuota", **quota_id)["ComputeQuotaTarget"]["TeamName"] == "blue"
    assert len(ask("ListComputeQuotas", ClusterArn=arn)["ComputeQuotaSummaries"]) == 1
    ask("DeleteComputeQuota", **quota_id)


def _nodes_are_worked_on(ask: Story, arn: str) -> None:
    nodes = [one["InstanceId"] for one in ask("ListClusterNodes", ClusterName="c1")["ClusterNodeSummaries"]]
    volume = {"ClusterArn": arn, "NodeId": nodes[0], "VolumeId": "vol-0123456789abcdef0"}
    assert ask("AttachClusterNodeVolume", **volume)["Status"] in {"attaching", "attached"}
    assert ask("DetachClusterNodeVolume", **volume)["Status"] in {"detaching", "detached"}
    assert ask("BatchRebootClusterNodes", ClusterName="c1", NodeIds=nodes[1:2])["Successful"] == nodes[1:2]
    assert ask("BatchReplaceClusterNodes", ClusterName="c1", NodeIds=nodes[2:3])["Successful"] == nodes[2:3]
    assert ask("BatchDeleteClusterNodes", ClusterName="c1", NodeIds=nodes[3:4])["Successful"] == nodes[3:4]
    more = [{"InstanceGroupName": "workers", "IncrementTargetCountBy": 1}]
    assert len(ask("BatchAddClusterNodes", ClusterName="c1", NodesToAdd=more)["Successful"]) == 1


def _is_changed_and_deleted(ask: Story, sessions: Sessions, arn: str) -> None:
    changed = CREATION["InstanceGroups"][0] | {"InstanceCount": 7}
    assert ask("UpdateCluster", ClusterName="c1", InstanceGroups=[changed])["ClusterArn"] == arn
    as_it_comes_into_service(sessions, "c1")
    assert ask("UpdateClusterSoftware", ClusterName="c1")["ClusterArn"] == arn
    assert ask("DescribeCluster", ClusterName="c1")["ClusterStatus"] in {"SystemUpdating", "InService"}
    ask("CreateCluster", ClusterName="c2", InstanceGroups=[group()])
    as_it_comes_into_service(sessions, "c2")
    ask("DeleteCluster", ClusterName="c2")
    assert ask("DescribeCluster", ClusterName="c2")["ClusterStatus"] == "Deleting"
    settle(sessions, "c2", ClusterState.DELETED)
    ask("CreateCluster", ClusterName="c3", InstanceGroups=[group()])
    as_it_comes_into_service(sessions, "c3")
    check = {"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}
    assert "ClusterArn" in ask("StartClusterHealthCheck", ClusterName="c3", DeepHealthCheckConfigurations=[check])
    gone = ask.aws.call("DescribeCluster", {"ClusterName": "c2"})
    assert (gone.status, gone.code) == (SERVICE_REFUSED, "ResourceNotFound")
    assert "does not exist" in gone.complaint


def test_the_command_line_pages_by_itself_and_resumes_where_it_was_told_to_stop(aws: Aws):
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        assert aws.call("CreateCluster", {"ClusterName": name, "InstanceGroups": [group()]}).status == 0

    def shown(*arguments: str) -> tuple[list[str], str | None]:
        answer = aws("list-clusters", "--name-contains", "page-", *arguments).answer
        return [one["ClusterName"] for one in answer["ClusterSummaries"]], answer.get("NextToken")

    assert shown() == (names, None)
    assert shown("--page-size", "2") == (names, None)
    first, token = shown("--page-size", "2", "--max-items", "3")
    assert first == names[:3]
    assert token
    assert shown("--page-size", "2", "--starting-token", token) == (names[3:], None)
    page, token = shown("--no-paginate", "--max-results", "4")
    assert page == names[:4]
    assert token
    assert shown("--no-paginate", "--next-token", token) == (names[4:], None)


def test_an_error_is_told_once_with_its_code(aws: Aws):
    refused = {
        "ResourceNotFound": ("describe-cluster", "--cluster-name", "nobody"),
        "ValidationException": ("list-clusters", "--next-token", "invented", "--no-paginate"),
        "UnknownOperationException": ("list-training-plans",),
    }
    for code, arguments in refused.items():
        told = aws(*arguments)
        assert (told.status, told.code) == (SERVICE_REFUSED, code)
        assert "reached max retries" not in told.complaint


def _is_within(sent: Any, skeleton: Any) -> bool:
    """Every member that is sent is one of the skeleton's; the keys of its maps are the caller's own."""
    if isinstance(sent, dict):
        if "KeyName" in skeleton:
            return all(_is_within(value, skeleton["KeyName"]) for value in sent.values())
        return all(name in skeleton and _is_within(value, skeleton[name]) for name, value in sent.items())
    if isinstance(sent, list):
        return all(_is_within(item, skeleton[0]) for item in sent)
    return True
