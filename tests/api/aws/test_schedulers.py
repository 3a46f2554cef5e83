"""Scheduler configurations through an unmodified boto3 client."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from models.cluster.states import ClusterState
from tests.api.aws.settling import settle
from tests.api.serving import group

CONFIG = {
    "PriorityClasses": [{"Name": "training", "Weight": 100}, {"Name": "rest", "Weight": 0}],
    "FairShare": "Disabled",
    "IdleResourceSharing": "Enabled",
}


@pytest.fixture
def arn(sagemaker) -> str:
    return sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])["ClusterArn"]


@pytest.fixture
def config(sagemaker, arn) -> str:
    return create(sagemaker, arn)["ClusterSchedulerConfigId"]


def create(sagemaker, arn, name="s1", **changes):
    return sagemaker.create_cluster_scheduler_config(**{"Name": name, "ClusterArn": arn, "SchedulerConfig": CONFIG} | changes)


def test_everything_that_was_sent_is_described(sagemaker, arn):
    made = create(sagemaker, arn, Description="first", Tags=[{"Key": "a", "Value": "1"}])
    told = sagemaker.describe_cluster_scheduler_config(ClusterSchedulerConfigId=made["ClusterSchedulerConfigId"])
    expected = {
        "ClusterSchedulerConfigArn": f"arn:aws:sagemaker:us-east-1:123456789012:cluster-scheduler-config/{made['ClusterSchedulerConfigId']}",
        "Name": "s1",
        "ClusterSchedulerConfigVersion": 1,
        "Status": "Created",
        "StatusDetails": {"PriorityClasses": "Created", "FairShare": "Created", "IdleResourceSharing": "Created"},
        "ClusterArn": arn,
        "SchedulerConfig": CONFIG,
        "Description": "first",
    }
    assert {name: told[name] for name in expected} == expected
    assert told["CreatedBy"]["IamIdentity"]["PrincipalId"]
    assert sagemaker.list_tags(ResourceArn=made["ClusterSchedulerConfigArn"])["Tags"] == [{"Key": "a", "Value": "1"}]


def test_what_was_left_out_is_told_by_its_default_or_stays_absent(sagemaker, arn):
    made = create(sagemaker, arn, SchedulerConfig={})
    told = sagemaker.describe_cluster_scheduler_config(ClusterSchedulerConfigId=made["ClusterSchedulerConfigId"])
    assert told["SchedulerConfig"] == {"FairShare": "Enabled"}
    assert told["StatusDetails"] == {"FairShare": "Created"}


def test_an_update_makes_a_version_and_the_one_before_is_kept(sagemaker, config):
    change = {"ClusterSchedulerConfigId": config, "TargetVersion": 1}
    made = sagemaker.update_cluster_scheduler_config(**change, SchedulerConfig={"FairShare": "Enabled"})
    assert made["ClusterSchedulerConfigVersion"] == 2
    newest = sagemaker.describe_cluster_scheduler_config(ClusterSchedulerConfigId=config)
    assert (newest["ClusterSchedulerConfigVersion"], newest["Status"]) == (2, "Updated")
    assert newest["SchedulerConfig"] == {"FairShare": "Enabled"}
    first = sagemaker.describe_cluster_scheduler_config(ClusterSchedulerConfigId=config, ClusterSchedulerConfigVersion=1)
    assert first["SchedulerConfig"] == CONFIG
    with pytest.raises(sagemaker.exceptions.ConflictException, match="TargetVersion 1 is not the newest version"):
        sagemaker.update_cluster_scheduler_config(**change)


def test_names_are_unique_on_their_cluster_which_may_have_several(sagemaker, arn, config):
    with pytest.raises(sagemaker.exceptions.ConflictException, match="with Name 's1' already exists"):
        create(sagemaker, arn)
    create(sagemaker, arn, "s2")
    other = sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()])["ClusterArn"]
    create(sagemaker, other)
    rows = sagemaker.list_cluster_scheduler_configs(ClusterArn=arn)["ClusterSchedulerConfigSummaries"]
    assert [row["Name"] for row in rows] == ["s2", "s1"]


def test_a_class_of_priority_is_named_once(sagemaker, arn):
    twice = {"PriorityClasses": [{"Name": "a", "Weight": 1}, {"Name": "a", "Weight": 2}]}
    with pytest.raises(ClientError, match="PriorityClasses has the name 'a' twice") as error:
        create(sagemaker, arn, SchedulerConfig=twice)
    assert error.value.response["Error"]["Code"] == "ValidationException"


def test_a_configuration_ends_when_asked_or_with_its_cluster(sagemaker, arn, config, sessions):
    second = create(sagemaker, arn, "s2")["ClusterSchedulerConfigId"]
    sagemaker.delete_cluster_scheduler_config(ClusterSchedulerConfigId=second)
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="does not exist"):
        sagemaker.delete_cluster_scheduler_config(ClusterSchedulerConfigId=second)
    settle(sessions, "c1", ClusterState.IN_SERVICE, ClusterState.DELETING, ClusterState.DELETED)
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="does not exist"):
        sagemaker.describe_cluster_scheduler_config(ClusterSchedulerConfigId=config)
    assert sagemaker.list_cluster_scheduler_configs()["ClusterSchedulerConfigSummaries"] == []
