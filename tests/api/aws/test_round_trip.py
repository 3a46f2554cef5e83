"""Every member of a group's specification is stored and comes back, or is refused by name. None is dropped: the model is the list."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.aws.schema import sagemaker as model
from api.aws.translate import refuse
from api.aws.translate.clusters import SETTINGS
from models.session import Sessions
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.serving import ROLE

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9_.]{0,10}[a-z0-9])?", fullmatch=True)
SECURITY = st.lists(st.from_regex(r"sg-[0-9a-f]{8}", fullmatch=True), min_size=1, max_size=5)
SUBNETS = st.lists(st.from_regex(r"subnet-[0-9a-f]{8}", fullmatch=True), min_size=1, max_size=16)
TAINT = st.fixed_dictionaries(
    {"Key": LABEL, "Effect": st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])}, optional={"Value": LABEL}
)
TYPES = tuple(model().shape_for("ClusterInstanceType").enum)
ANY_TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=128)

MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "InstanceCount": st.integers(0, 6758),
    "MinInstanceCount": st.integers(0, 6758),
    "InstanceGroupName": st.from_regex(r"[a-zA-Z0-9](-{0,2}[a-zA-Z0-9]){0,15}", fullmatch=True),
    "InstanceType": st.sampled_from(TYPES),
    "LifeCycleConfig": st.fixed_dictionaries({"SourceS3Uri": st.just("s3://bucket/prefix"), "OnCreate": ANY_TEXT}),
    "ExecutionRole": st.sampled_from([ROLE, "arn:aws-cn:iam::000000000000:role/path/to+x=,.@-_"]),
    "ThreadsPerCore": st.integers(1, 2),
    "InstanceStorageConfigs": st.lists(
        st.fixed_dictionaries({"EbsVolumeConfig": st.fixed_dictionaries({}, optional={"VolumeSizeInGB": st.integers(1, 16384)})}),
        max_size=1,
    ),
    "OverrideVpcConfig": st.fixed_dictionaries({"SecurityGroupIds": SECURITY, "Subnets": SUBNETS}),
    "ImageId": st.just("default"),
    "KubernetesConfig": st.fixed_dictionaries(
        {}, optional={"Labels": st.dictionaries(LABEL, LABEL, max_size=50), "Taints": st.lists(TAINT, max_size=50)}
    ),
    "SlurmConfig": st.fixed_dictionaries(
        {"NodeType": st.sampled_from(["Controller", "Login", "Compute"])},
        optional={"PartitionNames": st.lists(st.just("dev"), max_size=1)},
    ),
    "CapacityRequirements": st.sampled_from([{"Spot": {}}, {"OnDemand": {}}]),
    "NetworkInterface": st.fixed_dictionaries({}, optional={"InterfaceType": st.sampled_from(["efa", "efa-only"])}),
}
NAMES = (f"c{number}" for number in itertools.count())
REQUIRED = ("InstanceCount", "InstanceGroupName", "InstanceType", "ExecutionRole")
GROUPS = st.fixed_dictionaries(
    {name: MEMBERS[name] for name in REQUIRED}, optional={name: how for name, how in MEMBERS.items() if name not in REQUIRED}
).filter(lambda wish: wish.get("MinInstanceCount", 0) <= wish["InstanceCount"])


def shown_of(wish: dict[str, Any]) -> dict[str, Any]:
    """What the details must hold of a specification: HyperPod's own change of shape, written down once more."""
    shown = dict(wish)
    shown["TargetCount"] = shown.pop("InstanceCount")
    if "MinInstanceCount" in shown:
        shown["MinCount"] = shown.pop("MinInstanceCount")
    if "ImageId" in shown:
        shown["CurrentImageId"] = shown["DesiredImageId"] = shown.pop("ImageId")
    if "KubernetesConfig" in shown:
        config = shown.pop("KubernetesConfig")
        shown["KubernetesConfig"] = {f"{when}{name}": config[name] for name in config for when in ("Current", "Desired")}
    return shown


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(wishes=st.lists(GROUPS, min_size=1, max_size=3, unique_by=lambda wish: wish["InstanceGroupName"]))
def test_what_is_sent_reads_back_the_same(sagemaker, sessions: Sessions, wishes):
    name = next(NAMES)
    sagemaker.create_cluster(ClusterName=name, InstanceGroups=wishes, NodeProvisioningMode="Continuous")
    assert told_of(sagemaker, name) == [shown_of(wish) for wish in wishes]
    # Repeated as it was, and in another order, it is no change.
    as_it_comes_into_service(sessions, name)
    sagemaker.update_cluster(ClusterName=name, InstanceGroups=wishes[::-1])
    assert told_of(sagemaker, name) == [shown_of(wish) for wish in wishes]
    assert {g["Status"] for g in sagemaker.describe_cluster(ClusterName=name)["InstanceGroups"]} == {"InService"}


def told_of(sagemaker: Any, name: str) -> list[dict[str, Any]]:
    """The groups as they are described, without what is observed."""
    observed = {"Status", "CurrentCount", "ActiveOperations"}
    described = sagemaker.describe_cluster(ClusterName=name)["InstanceGroups"]
    return [{key: value for key, value in shown.items() if key not in observed} for shown in described]


def test_every_member_of_the_model_is_accepted_or_refused_by_name():
    members = set(model().shape_for("ClusterInstanceGroupSpecification").members)
    assert members == set(MEMBERS) | set(refuse.GROUP), "a member is new in the service model: accept it or refuse it"
    assert not set(MEMBERS) & set(refuse.GROUP)


@pytest.mark.parametrize("operation", ["CreateCluster", "UpdateCluster"])
def test_every_member_of_the_operation_is_accepted_or_refused_by_name(operation):
    known = {"ClusterName", "InstanceGroups", "InstanceGroupsToDelete", "Tags", "RestrictedInstanceGroups"}
    members = set(model().operation_model(operation).input_shape.members)
    assert members <= known | set(SETTINGS) | set(refuse.CLUSTER), "a member is new in the service model: accept it or refuse it"
