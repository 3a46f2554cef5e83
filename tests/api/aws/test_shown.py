"""What the tables say of answers is so: every member that is not said to be absent has been seen, and none that is."""

from __future__ import annotations

from typing import Any

import pytest

from api.aws.schema import sagemaker as model
from api.aws.support import paths, why_absent
from api.aws.table.sagemaker import SAGEMAKER
from models.cluster import changes
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.image.changes import request_release
from models.node.changes import settle_failed
from models.node.states import NodeState
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.aws.from_the_model import fullest, seen_in
from tests.api.aws.settling import NOW, as_it_comes_into_service
from tests.api.aws.test_from_the_model import CREATE, RELEASE, made_possible, taken_of
from tests.api.serving import group

LATER = "7.9.0"
EKS = {"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k"}}}


def without_contradictions(wish: dict[str, Any], choose: int) -> dict[str, Any]:
    """Everything at once, as far as it goes together: on EKS first, then on Slurm."""
    wish = taken_of(wish)
    one, restricted = wish["InstanceGroups"][0], wish["RestrictedInstanceGroups"][0]
    for given in (one, restricted):
        given.update(InstanceType="ml.c5.large", InstanceCount=1)
        given["ScheduledUpdateConfig"]["ScheduleExpression"] = "cron(0 2 ? * SUN *)"
    if "ImageReleaseVersion" in one:
        one["ImageReleaseVersion"] = RELEASE
    one.update(MinInstanceCount=1, CapacityRequirements={"Spot": {}} if choose else {"OnDemand": {}})
    if patching := one.get("AutoPatchConfig"):
        patching["PatchingStrategy"] = ("WhenIdle", "DrainFirst")[choose % 2]
        patching.pop("DrainPolicy" if choose % 2 == 0 else "IdleWaitWindowInSeconds", None)
    volume = one["InstanceStorageConfigs"][0].get("EbsVolumeConfig", {})
    if choose == 0:
        volume["RootVolume"] = False
    if choose == 1:
        del one["MinInstanceCount"]
        wish.pop("NodeProvisioningMode")
        wish["AutoScaling"]["Mode"] = "Disable"
        wish["Orchestrator"] = {"Slurm": wish["Orchestrator"]["Slurm"]}
        one["SlurmConfig"]["NodeType"] = "Compute"
    else:
        del one["SlurmConfig"]
        wish["AutoScaling"]["Mode"] = "Enable"
    if choose == 2:
        one.pop("InstanceType")
    else:
        one.pop("InstanceRequirements")
    wish["TieredStorageConfig"]["InstanceMemoryAllocationPercentage"] = 50
    return made_possible(wish)


@pytest.fixture
def clusters_with_everything(sagemaker, sessions: Sessions) -> list[str]:
    with unit_of_work(sessions) as session:
        request_release(session, RELEASE, image_id="default", now=NOW)
    names = []
    for choose in range(3):
        wish = without_contradictions(fullest(CREATE.input_shape, choose=choose), choose)
        sagemaker.create_cluster(**wish)
        names.append(wish["ClusterName"])
    return names


def unseen(name: str, answers: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """What should have been seen and was not, and what was seen and should not."""
    shape, absent = model().operation_model(name).output_shape, SAGEMAKER[name].absent
    seen = set().union(*(seen_in(shape, answer) for answer in answers))
    expected = {path for path in paths(shape) if why_absent(absent, path) is None}
    return expected - seen, seen - expected


def test_a_description_shows_every_member_that_is_not_said_to_be_absent(sagemaker, sessions: Sessions, clusters_with_everything):
    answers = [sagemaker.describe_cluster(ClusterName=name) for name in clusters_with_everything]
    with unit_of_work(sessions) as session:
        failed = clusters.find(session, clusters_with_everything[0], lock=True)
        changes.settle_cluster(session, failed, ClusterState.FAILED, why="of a test", now=NOW)
    answers.append(sagemaker.describe_cluster(ClusterName=clusters_with_everything[0]))
    sagemaker.create_cluster(
        ClusterName="updated", InstanceGroups=[group("a")], VpcConfig={"SecurityGroupIds": ["s"], "Subnets": ["n"]}, **EKS
    )
    as_it_comes_into_service(sessions, "updated")
    with unit_of_work(sessions) as session:
        request_release(session, LATER, image_id="default", now=NOW)
    deployment = fullest(model().shape_for("DeploymentConfiguration"))
    sagemaker.update_cluster_software(ClusterName="updated", DeploymentConfig=deployment, ImageId="default")
    answers.append(sagemaker.describe_cluster(ClusterName="updated"))
    assert unseen("DescribeCluster", answers) == (set(), set())


def test_a_list_of_clusters_shows_every_member_that_is_not_said_to_be_absent(sagemaker, clusters_with_everything):
    assert unseen("ListClusters", [sagemaker.list_clusters(MaxResults=1)]) == (set(), set())


def test_nodes_show_every_member_that_is_not_said_to_be_absent(sagemaker, sessions: Sessions, clusters_with_everything):
    details, summaries = [], []
    for name in clusters_with_everything:
        with unit_of_work(sessions) as session:
            cluster = clusters.find(session, name, lock=True)
            for number in range(2):
                node = rows.node(session, cluster, number=1 + number + 2 * len(details), state=NodeState.CHECKING)
                node.image, node.software_at = RELEASE, NOW
                if number:
                    settle_failed(session, node, why="of a test", now=NOW)
            logical_id = node.logical_id
        details.append(sagemaker.describe_cluster_node(ClusterName=name, NodeLogicalId=logical_id))
        first = sagemaker.list_cluster_nodes(ClusterName=name, IncludeNodeLogicalIds=True, MaxResults=1)
        summaries += [first, sagemaker.list_cluster_nodes(ClusterName=name, IncludeNodeLogicalIds=True)]
    assert unseen("DescribeClusterNode", details) == (set(), set())
    assert unseen("ListClusterNodes", summaries) == (set(), set())
