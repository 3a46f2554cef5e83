"""Volumes and network interfaces, by a real client against a real server, with a control plane in one thread behind it."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from models.clock import WallClock
from models.cluster import queries as clusters
from models.notify import NUDGE
from models.session import unit_of_work
from models.volume import queries
from tests.workers.small_plane import SmallPlane, TestClock
from workers.providers.base import HostRef, Volume

VOLUME = "vol-0123456789abcdef0"
ENI = "eni-0123456789abcdef0"
EKS = {"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/e1"}}}
VPC = {"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}}


@pytest.fixture
def plane(sessions, listen) -> SmallPlane:
    """Its clock begins at the server's time: groups have a patience."""
    return SmallPlane(sessions, listen(NUDGE), clock=TestClock(WallClock().now()))


@pytest.fixture
def up(sagemaker, plane):
    """``up(**members)`` makes a cluster of two nodes; returns its ARN and the nodes' ids."""

    def up(**members) -> tuple[str, list[str]]:
        role = "arn:aws:iam::123456789012:role/r"
        group = {"InstanceGroupName": "workers", "InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "ExecutionRole": role}
        arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group], **members)["ClusterArn"]
        plane.run_until(lambda: sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "InService")
        plane.run_until(lambda: plane.states()["node"] == ["ready"] * 2)
        return arn, [node["InstanceId"] for node in sagemaker.list_cluster_nodes(ClusterName="c1")["ClusterNodeSummaries"]]

    return up


def code(call, **members) -> str:
    with pytest.raises(ClientError) as caught:
        call(**members)
    return caught.value.response["Error"]["Code"]


def host(plane: SmallPlane, instance_id: str):
    return next(host for host in plane.provider.hosts() if host.instance_id == instance_id)


def test_a_volume_is_attached_and_detached_and_its_status_tells(sagemaker, plane, up):
    arn, (one, two) = up(**EKS, **VPC)
    wish = {"ClusterArn": arn, "NodeId": one, "VolumeId": VOLUME}
    first = sagemaker.attach_cluster_node_volume(**wish)
    assert (first["Status"], first["DeviceName"], first["NodeId"]) == ("attaching", "/dev/xvdf", one)
    plane.run(1)
    again = sagemaker.attach_cluster_node_volume(**wish)
    assert (again["Status"], again["AttachTime"]) == ("attached", first["AttachTime"])
    assert host(plane, one).volumes == (Volume(VOLUME, "/dev/xvdf"),)
    assert code(sagemaker.attach_cluster_node_volume, **(wish | {"NodeId": two})) == "ValidationException"
    second = sagemaker.attach_cluster_node_volume(**(wish | {"VolumeId": "vol-00000002"}))
    assert second["DeviceName"] == "/dev/xvdg"
    assert sagemaker.detach_cluster_node_volume(**wish)["Status"] == "detaching"
    plane.run(1)
    assert [volume.id for volume in host(plane, one).volumes] == ["vol-00000002"]
    assert code(sagemaker.detach_cluster_node_volume, **wish) == "ResourceNotFound"
    assert sagemaker.attach_cluster_node_volume(**(wish | {"NodeId": two}))["Status"] == "attaching"


def test_a_volume_that_a_host_of_others_has_is_busy_until_it_is_free(sagemaker, plane, up):
    arn, (one, two) = up(**EKS, **VPC)
    claims = {host.instance_id: host.claim for host in plane.provider.hosts()}
    plane.provider.attach_volume(HostRef(claims[two]), Volume(VOLUME, "/dev/xvdz"))
    wish = {"ClusterArn": arn, "NodeId": one, "VolumeId": VOLUME}
    sagemaker.attach_cluster_node_volume(**wish)
    plane.run(1)
    assert sagemaker.attach_cluster_node_volume(**wish)["Status"] == "busy"
    plane.provider.detach_volume(HostRef(claims[two]), VOLUME)
    plane.run(6)
    assert sagemaker.attach_cluster_node_volume(**wish)["Status"] == "attached"


def test_what_was_attached_to_a_replaced_node_is_free_again(sagemaker, plane, up):
    arn, (one, two) = up(**EKS, **VPC)
    sagemaker.attach_cluster_node_volume(ClusterArn=arn, NodeId=one, VolumeId=VOLUME)
    plane.run(1)
    sagemaker.batch_replace_cluster_nodes(ClusterName="c1", NodeIds=[one])
    plane.run_until(lambda: one not in [host.instance_id for host in plane.provider.hosts()])
    plane.run(2)
    with unit_of_work(plane.sessions) as session:
        assert queries.of_resource(session, VOLUME) is None
    assert sagemaker.attach_cluster_node_volume(ClusterArn=arn, NodeId=two, VolumeId=VOLUME)["Status"] == "attaching"


def test_volumes_need_a_cluster_with_eks_and_its_arn(sagemaker, up):
    arn, (one, _) = up()
    assert code(sagemaker.attach_cluster_node_volume, ClusterArn=arn, NodeId=one, VolumeId=VOLUME) == "ValidationException"
    assert code(sagemaker.attach_cluster_node_volume, ClusterArn="c1", NodeId=one, VolumeId=VOLUME) == "ValidationException"
    gone = "i-0123456789abcdef0"
    assert code(sagemaker.attach_cluster_node_volume, ClusterArn=arn, NodeId=gone, VolumeId=VOLUME) == "ResourceNotFound"


def test_nothing_is_attached_to_nodes_of_restricted_groups(sagemaker, plane, up):
    arn, (one, _) = up(**EKS, **VPC)
    with unit_of_work(plane.sessions) as session:
        (group,) = clusters.groups(session, clusters.find(session, "c1").id)
        group.is_restricted = True
    assert code(sagemaker.attach_cluster_node_volume, ClusterArn=arn, NodeId=one, VolumeId=VOLUME) == "ValidationException"


def test_an_interface_is_one_nodes_until_that_ends(sagemaker, plane, up):
    if not hasattr(sagemaker, "attach_cluster_node_network_interface"):
        pytest.skip("this botocore knows no AttachClusterNodeNetworkInterface")
    arn, (one, two) = up()
    wish = {"ClusterName": "c1", "NodeId": one, "NetworkInterfaceId": ENI}
    first = sagemaker.attach_cluster_node_network_interface(**wish)
    assert (first["ClusterArn"], first["AttachmentId"].startswith("eni-attach-")) == (arn, True)
    plane.run(1)
    assert host(plane, one).interfaces == (ENI,)
    assert sagemaker.attach_cluster_node_network_interface(**wish)["AttachmentId"] == first["AttachmentId"]
    assert code(sagemaker.attach_cluster_node_network_interface, **(wish | {"NodeId": two})) == "ValidationException"
