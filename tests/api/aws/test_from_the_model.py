"""The service model is the list of what there is: whatever it allows is taken and comes back, or is refused by name; whatever it forbids is told.

Nothing here is written down by hand but HyperPod's own change of names between a specification and its details, and what a member needs beside it.
"""

from __future__ import annotations

import itertools
import uuid
from contextlib import suppress
from typing import Any

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from api.aws.errors import code_of
from api.aws.schema import sagemaker as model
from api.aws.support import paths, read_request, word_of
from api.aws.table.kinds import Treatment
from api.aws.table.sagemaker import SAGEMAKER
from api.aws.validate import Violated
from models.image.changes import request_release
from models.session import Sessions, unit_of_work
from tests.api.aws.from_the_model import broken, values, values_with
from tests.api.aws.settling import NOW, as_it_comes_into_service
from tests.api.serving import ROLE, group

SERVED = sorted(set(SAGEMAKER) & set(model().operation_names))
"""An older model lacks some operations."""
RELEASE = "7.8.9"
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
NUMBERS = itertools.count()
KNOWN = {
    "CronScheduleExpression": st.sampled_from(["cron(0 2 ? * SUN *)", "cron(0/15 * * * ? *)", "cron(30 3 L * ? *)"]),
    "AutoRollbackAlarms": st.just([{"AlarmName": "loss"}]),
    "NodeUnavailabilityValue": st.integers(1, 100),
    "ImageId": st.just("default"),
    "ImageReleaseVersion": st.just(RELEASE),
}
"""Members that must be more than the model says: a schedule, an image that there is."""
CREATE = model().operation_model("CreateCluster")
UPDATE = model().operation_model("UpdateCluster")
FEW = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=2, database=None, phases=[Phase.generate])


@pytest.fixture(autouse=True)
def a_release_is_registered(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        request_release(session, RELEASE, image_id="default", now=NOW)


def is_taken(name: str, path: str) -> bool:
    """Whether a member is; those that only a newer model has are not."""
    word = word_of(SAGEMAKER[name].members, path)
    return word is not None and word.treatment is not Treatment.REFUSED


def taken_of(value: Any, shape: Any = CREATE.input_shape, path: str = "") -> Any:
    """A wish without the members that are not taken."""
    if shape.type_name == "list":
        return [taken_of(item, shape.member, f"{path}[]") for item in value]
    if shape.type_name != "structure":
        return value
    steps = {name: f"{path}.{name}" if path else name for name in value}
    return {
        name: taken_of(value[name], shape.members[name], step) for name, step in steps.items() if is_taken("CreateCluster", step)
    }


# ---------------------------------------------------------------------------------------------------------------- what comes back


def made_possible(wish: dict[str, Any]) -> dict[str, Any]:
    """The wish with what its members need beside them, and without what contradicts them."""
    wish = {**wish, "ClusterName": f"c{next(NUMBERS)}"}
    groups = [group(f"g{place}") | _possible_group(given) for place, given in enumerate(wish.get("InstanceGroups", [{}]))]
    for one in groups:
        if "InstanceRequirements" in one:
            del one["InstanceType"]
    wish["InstanceGroups"] = groups
    for place, one in enumerate(wish.get("RestrictedInstanceGroups", ())):
        one.update(_possible_group(one), InstanceGroupName=f"r{place}")
    if "RestrictedInstanceGroupsConfig" in wish:
        wish.setdefault("RestrictedInstanceGroups", [group("r0", InstanceCount=0)])
    _possible_orchestrator(wish)
    _possible_place(wish)
    if "InstanceMemoryAllocationPercentage" in (tiered := wish.get("TieredStorageConfig", {})):
        tiered["InstanceMemoryAllocationPercentage"] = max(20, tiered["InstanceMemoryAllocationPercentage"])
    if "Tags" in wish:
        wish["Tags"] = [{**tag, "Key": f"k{place}{tag['Key']}"[:128]} for place, tag in enumerate(wish["Tags"])]
    return wish


def _possible_group(given: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in given.items() if name != "InstanceGroupName"} | {"ExecutionRole": ROLE}
    if "MinInstanceCount" in given:
        given["InstanceCount"] = max(given["InstanceCount"], given["MinInstanceCount"])
    if given.get("SlurmConfig", {}).get("NodeType") == "Controller":
        given["InstanceCount"] = 1
        given.pop("MinInstanceCount", None)
    if config := given.get("LifeCycleConfig"):
        given["LifeCycleConfig"] = {"SourceS3Uri": "s3://b/k", "OnCreate": "x.sh"} | config
    for volume in (config["EbsVolumeConfig"] for config in given.get("InstanceStorageConfigs", ()) if "EbsVolumeConfig" in config):
        if volume.get("RootVolume"):
            volume.setdefault("VolumeKmsKeyId", "key")
            volume.pop("VolumeSizeInGB", None)
    given["InstanceStorageConfigs"] = given.get("InstanceStorageConfigs", [])[:1]
    if patching := given.get("AutoPatchConfig"):
        is_draining = patching["PatchingStrategy"] == "DrainFirst" or "DrainPolicy" in patching
        patching["PatchingStrategy"] = "DrainFirst" if is_draining else patching["PatchingStrategy"]
        if is_draining:
            patching.pop("IdleWaitWindowInSeconds", None)
    if requirements := given.get("CapacityRequirements"):
        given["CapacityRequirements"] = dict(list(requirements.items())[:1])
    return given


def _possible_orchestrator(wish: dict[str, Any]) -> None:
    if wish.get("AutoScaling", {}).get("Mode") == "Enable":
        wish["Orchestrator"] = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k"}}
        wish.setdefault("ClusterRole", ROLE)
        wish["NodeProvisioningMode"] = "Continuous"
    orchestrator = wish.get("Orchestrator")
    if orchestrator is not None:
        wish["Orchestrator"] = orchestrator = dict(list(orchestrator.items())[:1]) or {"Slurm": {}}
    if "Eks" in (orchestrator or {}):
        arn = f"arn:aws:eks:us-east-1:123456789012:cluster/k-{uuid.uuid4()}"
        wish["Orchestrator"] = {"Eks": {"ClusterArn": arn}}
    if any("MinInstanceCount" in given or "InstanceRequirements" in given for given in wish["InstanceGroups"]):
        wish["NodeProvisioningMode"] = "Continuous"


def _possible_place(wish: dict[str, Any]) -> None:
    groups = (*wish["InstanceGroups"], *wish.get("RestrictedInstanceGroups", ()))
    if "Eks" in wish.get("Orchestrator", {}) or any("OverrideVpcConfig" in given for given in groups):
        wish.setdefault("VpcConfig", VPC)


def shown(wish: dict[str, Any]) -> dict[str, Any]:
    """What DescribeCluster must hold of a wish: HyperPod's own change of names, written down once more."""
    told = {name: value for name, value in wish.items() if name != "Tags"}
    for kind in ("InstanceGroups", "RestrictedInstanceGroups"):
        if kind in told:
            told[kind] = [_shown_group(given) for given in told[kind]]
    if "RestrictedInstanceGroupsConfig" in told:
        shared = told["RestrictedInstanceGroupsConfig"]["SharedEnvironmentConfig"]
        told["RestrictedInstanceGroupsConfig"] = {"SharedEnvironmentConfig": _twice(shared)}
    return told


def _shown_group(given: dict[str, Any]) -> dict[str, Any]:
    told = {"TargetCount": given["InstanceCount"]} | {name: value for name, value in given.items() if name != "InstanceCount"}
    if "MinInstanceCount" in told:
        told["MinCount"] = told.pop("MinInstanceCount")
    if "InstanceRequirements" in told:
        told["InstanceRequirements"] = _twice(told["InstanceRequirements"])
    if "KubernetesConfig" in told:
        told["KubernetesConfig"] = _twice(told["KubernetesConfig"])
    for member in ("ImageId", "ImageReleaseVersion"):
        if member in told:
            told |= _twice({member: told.pop(member)})
    if "PatchSchedule" in told.get("AutoPatchConfig", {}):
        patching = dict(told["AutoPatchConfig"])
        told["AutoPatchConfig"] = {**patching, **_twice({"PatchSchedule": patching.pop("PatchSchedule")})}
        del told["AutoPatchConfig"]["PatchSchedule"]
    return told


def _twice(members: dict[str, Any]) -> dict[str, Any]:
    return {f"{when}{name}": value for name, value in members.items() for when in ("Current", "Desired")}


def missing(wanted: Any, told: Any, path: str = "") -> list[str]:
    """What of the wanted is not told, or is told otherwise, by its path."""
    if isinstance(wanted, dict):
        if not isinstance(told, dict):
            return [path]
        return [gap for name, item in wanted.items() for gap in missing(item, told.get(name), f"{path}.{name}")]
    if isinstance(wanted, list):
        if not isinstance(told, list) or len(told) != len(wanted):
            return [path] if wanted else []
        return [gap for place, item in enumerate(wanted) for gap in missing(item, told[place], f"{path}[{place}]")]
    if hasattr(told, "timestamp"):
        told = told.timestamp()
    return [] if wanted == told else [f"{path}: {wanted!r} is told as {told!r}"]


ALL = paths(CREATE.input_shape)
TAKEN = [
    path for path in ALL if is_taken("CreateCluster", path) and not any(other.startswith((f"{path}.", f"{path}[")) for other in ALL)
]
"""What is taken, without what only holds it."""


@pytest.mark.parametrize("path", TAKEN)
def test_every_member_of_a_cluster_comes_back_as_it_was_sent(sagemaker, path):
    @FEW
    @given(wish=values_with(CREATE.input_shape, path, KNOWN).map(made_possible))
    def reads_back(wish: dict[str, Any]) -> None:
        arn = sagemaker.create_cluster(**wish)["ClusterArn"]
        told = sagemaker.describe_cluster(ClusterName=wish["ClusterName"])
        assert missing(shown(wish), told) == []
        if "Tags" in wish:
            assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == wish["Tags"]

    reads_back()


@settings(FEW, max_examples=10)
@given(wish=values(CREATE.input_shape, KNOWN).map(lambda wish: made_possible(taken_of(wish))))
def test_what_is_repeated_as_it_was_in_another_order_is_no_change(sagemaker, sessions: Sessions, wish):
    _one_controller(wish)
    name = wish["ClusterName"]
    sagemaker.create_cluster(**wish)
    before = sagemaker.describe_cluster(ClusterName=name)
    assert missing(shown(wish), before) == []
    as_it_comes_into_service(sessions, name)
    again = {member: value for member, value in wish.items() if member in UPDATE.input_shape.members}
    again["InstanceGroups"] = again["InstanceGroups"][::-1]
    sagemaker.update_cluster(**again)
    after = sagemaker.describe_cluster(ClusterName=name)
    assert missing(shown(wish), after) == []
    assert {group["Status"] for group in after["InstanceGroups"]} == {"InService"}
    assert after["ClusterStatus"] == "InService"


def _one_controller(wish: dict[str, Any]) -> None:
    """A whole wish may have what its members alone do not: two controllers, Slurm's members on EKS or in a part of the groups only."""
    for one in wish["InstanceGroups"]:
        one.pop("SlurmConfig", None)
    if wish.get("NodeProvisioningMode") == "Continuous" and "Slurm" in wish.get("Orchestrator", {}):
        del wish["Orchestrator"]


REFUSED = [(name, path) for name in SERVED for path in paths(model().operation_model(name).input_shape) if not is_taken(name, path)]


@pytest.mark.parametrize("name, path", REFUSED)
@FEW
@given(data=st.data())
def test_every_member_that_is_not_taken_is_refused_by_name(name, path, data):
    operation = model().operation_model(name)
    wire = data.draw(values_with(operation.input_shape, path, KNOWN))
    member = path.rpartition(".")[2]
    with pytest.raises(
        Violated, match=f"{member[:1].lower()}{member[1:]}' failed to satisfy constraint: Member is (not supported|newer than)"
    ):
        read_request(operation, SAGEMAKER[name], wire)


# ------------------------------------------------------------------------------------------------------------- what is not allowed


@pytest.mark.parametrize("name", SERVED)
def test_every_constraint_that_is_broken_is_told_with_its_member(name):
    operation = model().operation_model(name)
    for case in broken(name, operation.input_shape):
        with pytest.raises(Violated) as caught:
            read_request(operation, SAGEMAKER[name], case.wire)
        assert f"'{case.told}'" in str(caught.value), str(case)
        assert code_of(caught.value).name == "ValidationException"


# ------------------------------------------------------------------------------------------------------------------- whatever comes


@pytest.fixture
def here(sagemaker, sessions: Sessions) -> dict[str, st.SearchStrategy[Any]]:
    """Names that there are, for members which name something: a request about nothing would go no further than that."""
    vpc = {"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k"}}, "VpcConfig": VPC}
    arn = sagemaker.create_cluster(
        ClusterName="here", InstanceGroups=[group("a"), group("b")], NodeProvisioningMode="Continuous", **vpc
    )["ClusterArn"]
    as_it_comes_into_service(sessions, "here")
    return {
        **KNOWN,
        "ClusterNameOrArn": st.sampled_from(["here", arn, "nowhere"]),
        "ClusterArn": st.just(arn),
        "ClusterInstanceGroupName": st.sampled_from(["a", "b", "c"]),
        "InstanceGroupName": st.sampled_from(["a", "b", "c"]),
        "ResourceArn": st.just(arn),
    }


@pytest.mark.parametrize("name", SERVED)
def test_no_valid_request_crashes_anything(sagemaker, here, name):
    call, statuses = getattr(sagemaker, xform_name(name)), []
    sagemaker.meta.events.register(
        f"after-call.sagemaker.{name}", lambda http_response, **_: statuses.append(http_response.status_code)
    )

    @settings(FEW, max_examples=5)
    @given(wish=values(model().operation_model(name).input_shape, here))
    def answers(wish: dict[str, Any]) -> None:
        with suppress(ClientError):
            call(**wish)
        assert statuses.pop() < 500, wish

    answers()
