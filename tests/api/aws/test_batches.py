"""Operations on several nodes, by a real client against a real server, with a control plane in one thread behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from models.clock import WallClock
from models.cluster import queries as clusters
from models.job.states import JobState
from models.node import queries as nodes
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane, TestClock

ROLE = "arn:aws:iam::123456789012:role/r"
VPC = {"VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}}
CONTINUOUS = {"NodeProvisioningMode": "Continuous"}
SLURM = {"SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["p1"]}}
UNKNOWN = "i-0123456789abcdef0"


def group(name: str = "workers", count: int = 2, **more: Any) -> dict[str, Any]:
    kind = {} if "InstanceRequirements" in more else {"InstanceType": "ml.c5.xlarge"}
    return {"InstanceGroupName": name, "InstanceCount": count, "ExecutionRole": ROLE} | kind | more


@pytest.fixture
def plane(sessions, listen) -> SmallPlane:
    """Its clock begins at the server's time: groups have a patience."""
    return SmallPlane(sessions, listen(NUDGE), clock=TestClock(WallClock().now()))


@pytest.fixture
def up(sagemaker, plane: SmallPlane) -> Callable[..., None]:
    """``up(name, groups…)`` makes a cluster and waits until all of its nodes serve."""

    def up(name: str = "c1", *groups: dict[str, Any], eks: str = "e1", **members: Any) -> None:
        arn = f"arn:aws:eks:us-east-1:123456789012:cluster/{eks}"
        wish = {"Orchestrator": {"Eks": {"ClusterArn": arn}}} | VPC | CONTINUOUS | members
        sagemaker.create_cluster(ClusterName=name, InstanceGroups=list(groups) or [group()], **wish)
        plane.run_until(lambda: all(node["InstanceStatus"]["Status"] == "Running" for node in listed(sagemaker, name)))
        plane.run_until(
            lambda: all(counts(sagemaker, name)[one["InstanceGroupName"]] == (one["InstanceCount"],) * 2 for one in groups)
        )

    return up


def listed(sagemaker, name: str = "c1") -> list[dict[str, Any]]:
    found = sagemaker.list_cluster_nodes(ClusterName=name, IncludeNodeLogicalIds=True)["ClusterNodeSummaries"]
    return found or [{"InstanceStatus": {"Status": "none yet"}}]


def ids(sagemaker, name: str = "c1") -> list[str]:
    return [node["InstanceId"] for node in listed(sagemaker, name)]


def places(sagemaker, name: str = "c1") -> dict[str, str]:
    return {node["InstanceId"]: node["NodeLogicalId"] for node in listed(sagemaker, name)}


def counts(sagemaker, name: str = "c1") -> dict[str, tuple[int, int]]:
    """Current and target by group."""
    shown = sagemaker.describe_cluster(ClusterName=name)["InstanceGroups"]
    return {one["InstanceGroupName"]: (one["CurrentCount"], one["TargetCount"]) for one in shown}


def refused(call: Callable[..., Any], **members: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**members)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


# ------------------------------------------------------------------------------------------------------------------- add


def test_added_nodes_have_their_logical_ids_at_once_and_serve_later(sagemaker, plane, up):
    up()
    answer = sagemaker.batch_add_cluster_nodes(
        ClusterName="c1", NodesToAdd=[{"InstanceGroupName": "workers", "IncrementTargetCountBy": 2}]
    )
    assert answer["Failed"] == []
    assert {(one["InstanceGroupName"], one["Status"]) for one in answer["Successful"]} == {("workers", "Pending")}
    fresh = {one["NodeLogicalId"] for one in answer["Successful"]}
    assert fresh < set(places(sagemaker).values()) | {node["NodeLogicalId"] for node in listed(sagemaker)}
    plane.run_until(lambda: counts(sagemaker)["workers"] == (4, 4))
    assert fresh < set(places(sagemaker).values())


def test_a_repeated_addition_is_told_of_the_same_nodes_and_adds_none(sagemaker, plane, up):
    up()
    wish = {
        "ClusterName": "c1",
        "NodesToAdd": [{"InstanceGroupName": "workers", "IncrementTargetCountBy": 2}],
        "ClientToken": "t-1",
    }
    first = [one["NodeLogicalId"] for one in sagemaker.batch_add_cluster_nodes(**wish)["Successful"]]
    plane.run_until(lambda: counts(sagemaker)["workers"] == (4, 4))
    sagemaker.batch_delete_cluster_nodes(ClusterName="c1", NodeLogicalIds=first[:1])
    plane.run_until(lambda: counts(sagemaker)["workers"] == (3, 3))
    again = sagemaker.batch_add_cluster_nodes(**wish)["Successful"]
    assert [(one["NodeLogicalId"], one["Status"]) for one in again] == [(first[0], "NotFound"), (first[1], "Running")]
    assert counts(sagemaker)["workers"] == (3, 3)
    other = wish | {"NodesToAdd": [{"InstanceGroupName": "workers", "IncrementTargetCountBy": 1}]}
    assert refused(sagemaker.batch_add_cluster_nodes, **other)[0] == "ValidationException"


def test_what_a_group_cannot_take_is_told_beside_what_others_got(sagemaker, up):
    up("c1", group("a", 1), group("b", 1))
    asked = [
        {
            "InstanceGroupName": "a",
            "IncrementTargetCountBy": 1,
            "InstanceTypes": ["ml.c5.xlarge"],
            "AvailabilityZones": ["us-east-1a"],
        },
        {"InstanceGroupName": "b", "IncrementTargetCountBy": 3, "InstanceTypes": ["ml.p5.48xlarge"]},
        {"InstanceGroupName": "b", "IncrementTargetCountBy": 4, "AvailabilityZones": ["us-east-1f"]},
        {"InstanceGroupName": "none", "IncrementTargetCountBy": 5},
    ]
    answer = sagemaker.batch_add_cluster_nodes(ClusterName="c1", NodesToAdd=asked)
    assert [one["InstanceGroupName"] for one in answer["Successful"]] == ["a"]
    assert [(one["ErrorCode"], one["FailedCount"]) for one in answer["Failed"]] == [
        ("IncompatibleInstanceTypes", 3),
        ("IncompatibleAvailabilityZones", 4),
        ("InstanceGroupNotFound", 5),
    ]
    assert counts(sagemaker)["b"] == (1, 1)


def test_a_group_that_is_going_takes_no_nodes(sagemaker, up):
    up("c1", group("a", 1), group("b", 1))
    sagemaker.update_cluster(ClusterName="c1", InstanceGroupsToDelete=["b"])
    answer = sagemaker.batch_add_cluster_nodes(
        ClusterName="c1", NodesToAdd=[{"InstanceGroupName": "b", "IncrementTargetCountBy": 1}]
    )
    assert [one["ErrorCode"] for one in answer["Failed"]] == ["InvalidInstanceGroupStatus"]


def test_nodes_are_added_to_continuous_clusters_only_and_fifty_at_most(sagemaker, plane, up):
    sagemaker.create_cluster(ClusterName="classic", InstanceGroups=[group()])
    wish = [{"InstanceGroupName": "workers", "IncrementTargetCountBy": 26}]
    code, message = refused(sagemaker.batch_add_cluster_nodes, ClusterName="classic", NodesToAdd=wish)
    assert (code, "Continuous" in message) == ("ValidationException", True)
    up()
    code, message = refused(sagemaker.batch_add_cluster_nodes, ClusterName="c1", NodesToAdd=wish * 2)
    assert (code, "52" in message) == ("ValidationException", True)


# ---------------------------------------------------------------------------------------------------------------- delete


def test_chosen_nodes_go_and_the_target_follows(sagemaker, plane, up):
    up("c1", group("workers", 3))
    gone, *kept = ids(sagemaker)
    assert sagemaker.batch_delete_cluster_nodes(ClusterName="c1", NodeIds=[gone, UNKNOWN]) | {"ResponseMetadata": 0} == {
        "Successful": [gone],
        "Failed": [{"NodeId": UNKNOWN, "Code": "NodeIdNotFound", "Message": f"Node '{UNKNOWN}' does not exist in the cluster."}],
        "ResponseMetadata": 0,
    }
    plane.run_until(lambda: ids(sagemaker) == kept)
    assert counts(sagemaker)["workers"] == (2, 2)
    # the new count is nothing new, the old one is one node more.
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("workers", 2)])
    plane.run(5)
    assert ids(sagemaker) == kept
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("workers", 3)])
    plane.run_until(lambda: counts(sagemaker)["workers"] == (3, 3))
    assert set(kept) < set(ids(sagemaker))


def test_scaling_down_takes_the_node_without_a_job(sagemaker, plane, up):
    """R-8, its first half."""
    up("c1", group("workers", 4))
    with unit_of_work(plane.sessions) as session:
        cluster_id = clusters.find(session, "c1").id
    job_id = plane.training(cluster_id, replicas=3, spares=0)
    busy = {plane.node(member.node_id).instance_id for member in plane.members(job_id)}
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("workers", 3)])
    plane.run_until(lambda: set(ids(sagemaker)) == busy)


def test_when_nothing_can_be_deleted_every_reason_is_told(sagemaker, up):
    up("c1", group("workers", 2, MinInstanceCount=2))
    first, _ = ids(sagemaker)
    code, message = refused(sagemaker.batch_delete_cluster_nodes, ClusterName="c1", NodeIds=[first, UNKNOWN])
    assert code == "ValidationException"
    assert "MinInstanceCount" in message
    assert UNKNOWN in message


def test_no_group_falls_below_its_minimum_by_a_deletion(sagemaker, up):
    up("c1", group("workers", 3, MinInstanceCount=2))
    answer = sagemaker.batch_delete_cluster_nodes(ClusterName="c1", NodeIds=ids(sagemaker))
    assert (len(answer["Successful"]), [one["Code"] for one in answer["Failed"]]) == (1, ["InvalidNodeStatus"] * 2)


def test_a_deleted_node_cannot_be_deleted_again(sagemaker, up):
    up()
    first, second = ids(sagemaker)
    sagemaker.batch_delete_cluster_nodes(ClusterName="c1", NodeIds=[first])
    answer = sagemaker.batch_delete_cluster_nodes(ClusterName="c1", NodeIds=[first, second])
    assert (answer["Successful"], answer["Failed"][0]["Code"]) == ([second], "InvalidNodeStatus")
    assert answer["Failed"][0]["Message"] == f"Node '{first}' is being deleted; its removal is not possible any more."


@pytest.mark.parametrize("twice", [("NodeIds", "NodeIds"), ("NodeIds", "NodeLogicalIds")])
def test_a_node_that_is_named_twice_is_refused(sagemaker, up, twice):
    up()
    instance, place = next(iter(places(sagemaker).items()))
    wish: dict[str, list[str]] = {"NodeIds": [], "NodeLogicalIds": []}
    for member in twice:
        wish[member].append(instance if member == "NodeIds" else place)
    code, message = refused(
        sagemaker.batch_delete_cluster_nodes, ClusterName="c1", **{name: found for name, found in wish.items() if found}
    )
    assert code == "ValidationException"
    assert instance in message


def test_slurm_controllers_are_neither_deleted_nor_replaced(sagemaker, up):
    controller = group("head", 1, SlurmConfig={"NodeType": "Controller"})
    up("c1", controller, group("workers", 1, **SLURM), Orchestrator={"Slurm": {}})
    by_group = {node["InstanceGroupName"]: node["InstanceId"] for node in listed(sagemaker)}
    answer = sagemaker.batch_delete_cluster_nodes(ClusterName="c1", NodeIds=list(by_group.values()))
    assert [one["NodeId"] for one in answer["Failed"]] == [by_group["head"]]
    answer = sagemaker.batch_replace_cluster_nodes(ClusterName="c1", NodeIds=[by_group["head"]])
    assert [one["ErrorCode"] for one in answer["Failed"]] == ["InvalidInstanceStatus"]


def test_a_cluster_that_is_being_deleted_takes_no_batch(sagemaker, up):
    up()
    chosen = ids(sagemaker)[:1]
    sagemaker.delete_cluster(ClusterName="c1")
    for call in (
        sagemaker.batch_delete_cluster_nodes,
        sagemaker.batch_reboot_cluster_nodes,
        sagemaker.batch_replace_cluster_nodes,
    ):
        assert refused(call, ClusterName="c1", NodeIds=chosen)[0] == "ConflictException"


# ------------------------------------------------------------------------------------------------------ reboot and replace


@pytest.mark.parametrize("recovery", ["Automatic", "None"])
def test_a_reboot_keeps_and_a_replacement_changes_the_instance(sagemaker, plane, up, recovery):
    up(NodeRecovery=recovery)
    before = places(sagemaker)
    rebooted, replaced = before
    assert sagemaker.batch_reboot_cluster_nodes(ClusterName="c1", NodeIds=[rebooted])["Successful"] == [rebooted]
    answer = sagemaker.batch_replace_cluster_nodes(ClusterName="c1", NodeLogicalIds=[before[replaced]])
    assert answer["SuccessfulNodeLogicalIds"] == [before[replaced]]
    plane.run_until(lambda: replaced not in ids(sagemaker) and counts(sagemaker)["workers"] == (2, 2))
    after = places(sagemaker)
    assert after[rebooted] == before[rebooted]
    assert set(after.values()) == set(before.values())
    assert len(plane.provider.hosts()) == 2


def test_failures_of_a_reboot_are_told_with_success_of_the_call(sagemaker, up):
    up()
    answer = sagemaker.batch_reboot_cluster_nodes(ClusterName="c1", NodeIds=[UNKNOWN])
    assert "Successful" not in answer
    assert "FailedNodeLogicalIds" not in answer
    assert [(one["NodeId"], one["ErrorCode"]) for one in answer["Failed"]] == [(UNKNOWN, "InstanceIdNotFound")]
    chosen = ids(sagemaker)[:1]
    assert sagemaker.batch_reboot_cluster_nodes(ClusterName="c1", NodeIds=chosen)["Failed"] == []
    again = sagemaker.batch_reboot_cluster_nodes(ClusterName="c1", NodeIds=chosen)
    assert [one["ErrorCode"] for one in again["Failed"]] == ["InstanceIdInUse"]


def test_logical_ids_need_a_continuous_cluster(sagemaker, plane):
    sagemaker.create_cluster(ClusterName="classic", InstanceGroups=[group()])
    plane.run_until(lambda: sagemaker.describe_cluster(ClusterName="classic")["ClusterStatus"] == "InService")
    place = listed(sagemaker, "classic")[0]["NodeLogicalId"]
    for call in (sagemaker.batch_reboot_cluster_nodes, sagemaker.batch_replace_cluster_nodes):
        assert refused(call, ClusterName="classic", NodeLogicalIds=[place])[0] == "ValidationException"
        assert refused(call, ClusterName="classic")[0] == "ValidationException"


# ------------------------------------------------------------------------------------------------------------------- move

MOVES = "move_cluster_nodes"


@pytest.fixture
def ends(sagemaker, up) -> dict[str, str]:
    """Two clusters, of three nodes and one."""
    if not hasattr(sagemaker, MOVES):
        pytest.skip("this botocore knows no MoveClusterNodes")
    up("here", group("ours", 3, MinInstanceCount=1))
    up("there", group("theirs", 1), group("odd", 0, InstanceType="ml.p5.48xlarge"), eks="e2")
    arns = {name: sagemaker.describe_cluster(ClusterName=name)["ClusterArn"] for name in ("here", "there")}
    return {
        "SourceClusterArn": arns["here"],
        "SourceInstanceGroupName": "ours",
        "TargetClusterArn": arns["there"],
        "TargetInstanceGroupName": "theirs",
    }


def test_moved_nodes_show_where_they_are_and_keep_their_ids(sagemaker, plane, ends):
    before = places(sagemaker, "here")
    chosen = ids(sagemaker, "here")[0]
    addresses = {chosen: sagemaker.describe_cluster_node(ClusterName="here", NodeId=chosen)["NodeDetails"]["PrivatePrimaryIp"]}
    assert sagemaker.move_cluster_nodes(**ends, NodeIds=[chosen])["Successful"] == [chosen]
    plane.run_until(lambda: counts(sagemaker, "there")["theirs"] == (2, 2))
    assert counts(sagemaker, "here")["ours"] == (2, 2)
    assert places(sagemaker, "there")[chosen] == before[chosen]
    after = sagemaker.describe_cluster_node(ClusterName="there", NodeId=chosen)["NodeDetails"]
    assert (after["PrivatePrimaryIp"], after["InstanceGroupName"]) == (addresses[chosen], "theirs")
    assert len(plane.provider.hosts()) == 4


def test_a_moving_node_is_detached_before_it_is_attached(sagemaker, plane, ends):
    chosen = ids(sagemaker, "here")[0]
    with unit_of_work(plane.sessions) as session:
        node_id = nodes.by_instance(session, chosen).id
    sagemaker.move_cluster_nodes(**ends, NodeIds=[chosen])
    for cluster, status in (("here", "DetachInProgress"), ("there", "AttachInProgress")):
        plane.reconcile("node", node_id)
        shown = sagemaker.describe_cluster_node(ClusterName=cluster, NodeId=chosen)["NodeDetails"]
        assert shown["InstanceStatus"]["Status"] == status


def test_nodes_move_between_groups_of_one_cluster_after_their_jobs(sagemaker, plane, up):
    if not hasattr(sagemaker, MOVES):
        pytest.skip("this botocore knows no MoveClusterNodes")
    up("c1", group("a", 3), group("b", 1))
    arn = sagemaker.describe_cluster(ClusterName="c1")["ClusterArn"]
    job_id = plane.training(arn.rpartition("/")[2], replicas=3, spares=0)
    busy = [plane.node(member.node_id) for member in plane.members(job_id)]
    chosen = next(node.instance_id for node in busy if node.group_name == "a")
    ends = {"SourceClusterArn": arn, "SourceInstanceGroupName": "a", "TargetClusterArn": arn, "TargetInstanceGroupName": "b"}
    assert sagemaker.move_cluster_nodes(**ends, NodeIds=[chosen])["Successful"] == [chosen]
    plane.run_until(lambda: counts(sagemaker) == {"a": (2, 2), "b": (2, 2)})
    assert sagemaker.describe_cluster_node(ClusterName="c1", NodeId=chosen)["NodeDetails"]["InstanceGroupName"] == "b"
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    assert len(plane.provider.hosts()) == 4


def test_a_number_of_nodes_is_moved_and_a_repeated_move_is_given_its_first_answer(sagemaker, plane, ends):
    first = sagemaker.move_cluster_nodes(**ends, InstanceCount=2, ClientToken="t-1")["Successful"]
    plane.run_until(lambda: counts(sagemaker, "there")["theirs"] == (3, 3))
    assert sagemaker.move_cluster_nodes(**ends, InstanceCount=2, ClientToken="t-1")["Successful"] == first
    assert counts(sagemaker, "here")["ours"] == (1, 1)
    assert refused(sagemaker.move_cluster_nodes, **ends, InstanceCount=1, ClientToken="t-1")[0] == "ValidationException"


def test_a_move_that_cannot_be_is_refused_as_a_whole(sagemaker, ends):
    def why(**members: Any) -> str:
        code, message = refused(sagemaker.move_cluster_nodes, **(ends | members))
        assert code == "ValidationException"
        return message

    present = ids(sagemaker, "here")
    assert "exactly one" in why()
    assert "exactly one" in why(InstanceCount=1, NodeIds=present[:1])
    assert "MinInstanceCount" in why(NodeIds=present)
    assert "can be moved" in why(InstanceCount=4)
    assert UNKNOWN in why(NodeIds=[UNKNOWN])
    assert "ml.p5.48xlarge" in why(NodeIds=present[:1], TargetInstanceGroupName="odd")
    same = {"TargetClusterArn": ends["SourceClusterArn"], "TargetInstanceGroupName": "ours"}
    assert "both source and target" in why(InstanceCount=1, **same)
    assert counts(sagemaker, "here")["ours"] == (3, 3)


def test_nodes_that_cannot_be_moved_do_not_hinder_the_others(sagemaker, ends):
    chosen = ids(sagemaker, "here")[0]
    foreign = ids(sagemaker, "there")[0]
    answer = sagemaker.move_cluster_nodes(**ends, NodeIds=[chosen, foreign])
    assert (answer["Successful"], [one["Code"] for one in answer["Failed"]]) == ([chosen], ["NodeIdNotFound"])
    again = sagemaker.move_cluster_nodes(**ends, NodeIds=[chosen, ids(sagemaker, "here")[1]])
    assert [one["Code"] for one in again["Failed"]] == ["NodeIdInUse"]


def test_clusters_without_eks_take_no_part_in_moves(sagemaker, plane, ends):
    sagemaker.create_cluster(
        ClusterName="slurm", InstanceGroups=[group("head", 1, SlurmConfig={"NodeType": "Controller"})], **CONTINUOUS
    )
    with unit_of_work(plane.sessions) as session:
        arn = clusters.find(session, "slurm").arn
    code, message = refused(sagemaker.move_cluster_nodes, **(ends | {"TargetClusterArn": arn}), InstanceCount=1)
    assert (code, "Eks" in message) == ("ValidationException", True)
