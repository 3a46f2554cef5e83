"""UpdateCluster: merged by name, immutables refused, busy clusters left alone."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from models.cluster import changes, queries
from models.cluster.states import ClusterState, GroupState
from models.node.changes import settle_wanted_node
from models.session import Sessions, unit_of_work
from tests.api.aws.settling import NOW, as_it_comes_into_service, settle
from tests.api.serving import ROLE, group

VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k8s"}}
OTHER_EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/other"}}


def groups_of(sagemaker: Any, name: str = "c1") -> dict[str, dict[str, Any]]:
    return {g["InstanceGroupName"]: g for g in sagemaker.describe_cluster(ClusterName=name)["InstanceGroups"]}


@pytest.fixture
def c1(sagemaker, sessions: Sessions) -> str:
    """A classic cluster in service, with groups a, b and c of 2."""
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a"), group("b"), group("c")])["ClusterArn"]
    as_it_comes_into_service(sessions, "c1")
    return arn


@pytest.fixture
def continuous(sagemaker, sessions: Sessions) -> str:
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a")], NodeProvisioningMode="Continuous")["ClusterArn"]
    as_it_comes_into_service(sessions, "c1")
    return arn


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_group_is_scaled_by_its_name_and_others_stay_untouched(sagemaker, c1, count):
    assert sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("b", count)])["ClusterArn"] == c1
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Updating"
    shown = groups_of(sagemaker)
    assert {name: g["TargetCount"] for name, g in shown.items()} == {"a": 2, "b": count, "c": 2}
    assert {name: g["Status"] for name, g in shown.items()} == {"a": "InService", "b": "Updating", "c": "InService"}


def test_the_order_of_a_reversed_list_changes_nothing(sagemaker, c1):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("c"), group("b"), group("a")])
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert described["ClusterStatus"] == "InService"
    assert [(g["InstanceGroupName"], g["Status"]) for g in described["InstanceGroups"]] == [(name, "InService") for name in "abc"]


def test_a_new_name_adds_a_group_at_the_end(sagemaker, c1):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("d", 1), group("a", 3), group("e", 1)])
    shown = groups_of(sagemaker)
    assert list(shown) == ["a", "b", "c", "d", "e"]
    assert (shown["d"]["Status"], shown["a"]["Status"], shown["b"]["Status"]) == ("Creating", "Updating", "InService")


def test_a_group_is_deleted_only_when_it_is_named_for_deletion(sagemaker, c1, sessions: Sessions):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroupsToDelete=["b"])
    assert groups_of(sagemaker)["b"]["Status"] == "Deleting"
    as_it_comes_into_service(sessions, "c1")
    assert list(groups_of(sagemaker)) == ["a", "c"]


def test_a_deleted_group_s_name_can_be_used_again_once_it_is_gone(sagemaker, continuous, sessions: Sessions):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("b")], InstanceGroupsToDelete=["a"])
    with pytest.raises(sagemaker.exceptions.ConflictException, match="'a' is deleting"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 7)])
    as_it_comes_into_service(sessions, "c1")
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 7)])
    assert groups_of(sagemaker)["a"]["TargetCount"] == 7


@pytest.mark.parametrize(
    "deleted, text",
    [
        (["a", "b", "c"], "last one cannot be deleted"),
        (["nope"], "'nope' in InstanceGroupsToDelete does not exist"),
        (["a", "a"], "names 'a' twice"),
    ],
)
def test_a_deletion_that_cannot_be_is_refused(sagemaker, c1, deleted, text):
    with pytest.raises(ClientError, match=text) as refused:
        sagemaker.update_cluster(ClusterName="c1", InstanceGroupsToDelete=deleted)
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "InService"


def test_all_groups_may_go_when_another_comes(sagemaker, c1):
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("d")], InstanceGroupsToDelete=["a", "b", "c"])
    assert {name: g["Status"] for name, g in groups_of(sagemaker).items()} == {
        "a": "Deleting",
        "b": "Deleting",
        "c": "Deleting",
        "d": "Creating",
    }


def test_a_group_cannot_be_changed_and_deleted_in_one_call(sagemaker, c1):
    with pytest.raises(ClientError, match="both in InstanceGroups and in InstanceGroupsToDelete"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 3)], InstanceGroupsToDelete=["a"])


@pytest.mark.parametrize(
    "member, before, after",
    [
        ("InstanceType", None, "ml.c5.2xlarge"),
        ("ExecutionRole", None, "arn:aws:iam::123456789012:role/another"),
        ("ThreadsPerCore", 1, 2),
        ("ThreadsPerCore", 1, None),
        ("OverrideVpcConfig", VPC, None),
        ("OverrideVpcConfig", None, VPC),
        ("CapacityRequirements", {"Spot": {}}, {"OnDemand": {}}),
        ("InstanceStorageConfigs", [{"EbsVolumeConfig": {"VolumeSizeInGB": 10}}], [{"EbsVolumeConfig": {"VolumeSizeInGB": 20}}]),
        ("NetworkInterface", {"InterfaceType": "efa"}, None),
    ],
)
def test_an_immutable_member_cannot_be_changed_nor_left_out(sagemaker, sessions: Sessions, member, before, after):
    given = {} if before is None else {member: before}
    wanted = {} if after is None else {member: after}
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group(**given)], VpcConfig=VPC)
    as_it_comes_into_service(sessions, "c1")
    with pytest.raises(ClientError, match=f"Updating fields {member} on an InstanceGroup not supported") as refused:
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group(count=5, **wanted)])
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert groups_of(sagemaker)["workers"]["TargetCount"] == 2


def test_every_immutable_member_that_would_change_is_named_at_once(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group(ThreadsPerCore=1)])
    as_it_comes_into_service(sessions, "c1")
    with pytest.raises(ClientError, match="Updating fields InstanceType, ThreadsPerCore on an InstanceGroup not supported"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group(InstanceType="ml.c5.large")])


def test_a_group_cannot_become_a_restricted_one(sagemaker, c1):
    with pytest.raises(ClientError, match="Instance group 'a' is one of InstanceGroups: it cannot become another kind"):
        sagemaker.update_cluster(ClusterName="c1", RestrictedInstanceGroups=[group("a")])


def test_restricted_groups_are_added_changed_and_shown_in_a_list_of_their_own(sagemaker, sessions: Sessions, c1):
    sagemaker.update_cluster(ClusterName="c1", RestrictedInstanceGroups=[group("r", 1)])
    as_it_comes_into_service(sessions, "c1")
    sagemaker.update_cluster(ClusterName="c1", RestrictedInstanceGroups=[group("r", 3)])
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert [(one["InstanceGroupName"], one["TargetCount"]) for one in described["RestrictedInstanceGroups"]] == [("r", 3)]
    assert [one["InstanceGroupName"] for one in described["InstanceGroups"]] == ["a", "b", "c"]


def test_a_cluster_may_have_restricted_groups_alone(sagemaker):
    sagemaker.create_cluster(ClusterName="c1", RestrictedInstanceGroups=[group("r", 1)])
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert described["InstanceGroups"] == []
    assert [one["InstanceGroupName"] for one in described["RestrictedInstanceGroups"]] == ["r"]


def test_types_of_a_flexible_group_come_and_go_unless_nodes_are_of_them(sagemaker, sessions: Sessions):
    def flexible(*types: str) -> dict:
        wish = group("a", InstanceRequirements={"InstanceTypes": list(types)})
        del wish["InstanceType"]
        return wish

    sagemaker.create_cluster(
        ClusterName="c1", InstanceGroups=[flexible("ml.c5.large", "ml.c5.xlarge")], NodeProvisioningMode="Continuous"
    )
    as_it_comes_into_service(sessions, "c1")
    with unit_of_work(sessions) as session:
        (row,) = queries.groups(session, queries.find(session, "c1").id)
        settle_wanted_node(session, row, now=NOW)
    with pytest.raises(ClientError, match=r"must keep ml\.c5\.large: the group has nodes of it"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[flexible("ml.c5.xlarge")])
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[flexible("ml.c5.2xlarge", "ml.c5.large")])
    shown = groups_of(sagemaker)["a"]
    assert shown["InstanceRequirements"] == {
        "CurrentInstanceTypes": ["ml.c5.large", "ml.c5.xlarge"],
        "DesiredInstanceTypes": ["ml.c5.2xlarge", "ml.c5.large"],
    }
    assert [(one["InstanceType"], one["CurrentCount"]) for one in shown["InstanceTypeDetails"]] == [
        ("ml.c5.2xlarge", 0),
        ("ml.c5.large", 0),
    ]
    with pytest.raises(ClientError, match="Updating fields InstanceType on an InstanceGroup not supported"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a")])


def test_what_autoscaling_stands_on_cannot_be_taken_away_while_it_is_enabled(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(
        ClusterName="c1",
        InstanceGroups=[group("a", 0)],
        Orchestrator=EKS,
        VpcConfig=VPC,
        NodeProvisioningMode="Continuous",
        ClusterRole=ROLE,
        AutoScaling={"Mode": "Enable", "AutoScalerType": "Karpenter"},
    )
    as_it_comes_into_service(sessions, "c1")
    assert sagemaker.describe_cluster(ClusterName="c1")["AutoScaling"] == {
        "Mode": "Enable",
        "AutoScalerType": "Karpenter",
        "Status": "InService",
    }
    with pytest.raises(ClientError, match="ClusterRole cannot change while AutoScaling is enabled"):
        sagemaker.update_cluster(ClusterName="c1", ClusterRole=f"{ROLE}-2")
    sagemaker.update_cluster(ClusterName="c1", ClusterRole=f"{ROLE}-2", AutoScaling={"Mode": "Disable"})


def test_members_of_slurm_are_merged_one_by_one(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(
        ClusterName="c1", InstanceGroups=[group("a")], Orchestrator={"Slurm": {"SlurmConfigStrategy": "Merge"}}
    )
    as_it_comes_into_service(sessions, "c1")
    sagemaker.update_cluster(ClusterName="c1", Orchestrator={"Slurm": {"SlurmConfigStrategy": "Managed"}})
    assert sagemaker.describe_cluster(ClusterName="c1")["Orchestrator"] == {"Slurm": {"SlurmConfigStrategy": "Managed"}}


def test_slurm_keeps_a_controller_whatever_is_updated(sagemaker, sessions: Sessions):
    head, worker = ({"SlurmConfig": {"NodeType": kind}} for kind in ("Controller", "Compute"))
    sagemaker.create_cluster(
        ClusterName="c1", InstanceGroups=[group("head", 1, **head), group("workers", 1, **worker)], Orchestrator={"Slurm": {}}
    )
    as_it_comes_into_service(sessions, "c1")
    for wish in ({"InstanceGroupsToDelete": ["head"]}, {"InstanceGroups": [group("head", 1, **worker)]}):
        with pytest.raises(ClientError, match="'head' is the Controller of Slurm"):
            sagemaker.update_cluster(ClusterName="c1", **wish)
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("other", 1, **head)], InstanceGroupsToDelete=["head"])


def test_mutable_members_change_and_those_left_out_stay(sagemaker, sessions: Sessions):
    first = {
        "LifeCycleConfig": {"SourceS3Uri": "s3://bucket/one", "OnCreate": "on_create.sh"},
        "KubernetesConfig": {"Labels": {"team": "one"}},
    }
    second = {"LifeCycleConfig": {"SourceS3Uri": "s3://bucket/two", "OnCreate": "other.sh"}}
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group(**first)])
    as_it_comes_into_service(sessions, "c1")
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group(**second)])
    shown = groups_of(sagemaker)["workers"]
    assert shown["LifeCycleConfig"] == second["LifeCycleConfig"]
    assert shown["KubernetesConfig"] == {"CurrentLabels": {"team": "one"}, "DesiredLabels": {"team": "one"}}


def test_a_schedule_that_is_over_does_not_stand_in_the_way_of_other_changes(sagemaker, sessions: Sessions, c1):
    over = {"ScheduleExpression": "cron(0 0 1 1 ? 2020)"}
    with unit_of_work(sessions) as session:
        row = queries.groups(session, queries.find(session, "c1").id)[0]
        row.spec = {**row.spec, "ScheduledUpdateConfig": over}
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 3)])
    assert groups_of(sagemaker)["a"]["ScheduledUpdateConfig"] == over


def test_cluster_wide_members_change_alone(sagemaker, c1):
    sagemaker.update_cluster(ClusterName="c1", NodeRecovery="None")
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert described["NodeRecovery"] == "None"
    assert {g["TargetCount"] for g in described["InstanceGroups"]} == {2}


@pytest.mark.parametrize("members", [{}, {"NodeRecovery": "Automatic"}, {"InstanceGroups": [group()]}])
def test_a_call_that_changes_nothing_starts_nothing(sagemaker, sessions: Sessions, members):
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], NodeRecovery="Automatic")["ClusterArn"]
    as_it_comes_into_service(sessions, "c1")
    assert sagemaker.update_cluster(ClusterName="c1", **members)["ClusterArn"] == arn
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "InService"


@pytest.mark.parametrize(
    "state, words",
    [
        (ClusterState.UPDATING, "updating; an update is possible once it has settled"),
        (ClusterState.SYSTEM_UPDATING, "system updating; an update is possible once it has settled"),
        (ClusterState.DELETING, "being deleted; an update is not possible any more"),
    ],
)
def test_a_busy_classic_cluster_refuses_an_update(sagemaker, c1, sessions: Sessions, state, words):
    settle(sessions, "c1", state)
    with pytest.raises(sagemaker.exceptions.ConflictException, match=f"'c1' is {words}"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 3)])
    assert groups_of(sagemaker)["a"]["TargetCount"] == 2


def test_a_continuous_cluster_stays_in_service_and_can_be_updated_again_at_once(sagemaker, continuous):
    for count in (5, 3):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", count)])
        assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "InService"
    shown = groups_of(sagemaker)["a"]
    assert (shown["TargetCount"], shown["ActiveOperations"]) == (3, {"Scaling": 1})


def test_a_failed_cluster_can_be_repaired_by_an_update(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    settle(sessions, "c1", ClusterState.FAILED, why="no capacity")
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group(count=1)])
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert described["ClusterStatus"] == "Updating"
    assert "FailureMessage" not in described


def test_a_cluster_whose_creation_was_undone_serves_again_only_with_a_group(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("a")])
    settle(sessions, "c1", ClusterState.ROLLING_BACK)
    with unit_of_work(sessions) as session:
        cluster = queries.find(session, "c1", lock=True)
        for each in queries.groups(session, cluster.id):
            changes.settle_rollback(each, now=NOW)
            changes.settle_group(session, cluster, each, GroupState.GONE, why="gone", now=NOW)
    settle(sessions, "c1", ClusterState.FAILED)
    with pytest.raises(ClientError, match="at least one instance group"):
        sagemaker.update_cluster(ClusterName="c1", NodeRecovery="None")
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Failed"
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a")])
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Updating"


def test_a_minimum_is_for_continuous_clusters_and_never_above_the_target(sagemaker, c1, sessions: Sessions):
    with pytest.raises(ClientError, match="needs a cluster whose NodeProvisioningMode is Continuous"):
        sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group("a", 3, MinInstanceCount=1)])
    sagemaker.create_cluster(
        ClusterName="c2", InstanceGroups=[group("a", 4, MinInstanceCount=2)], NodeProvisioningMode="Continuous"
    )
    as_it_comes_into_service(sessions, "c2")
    with pytest.raises(ClientError, match="must not exceed its InstanceCount"):
        sagemaker.update_cluster(ClusterName="c2", InstanceGroups=[group("a", 1)])
    sagemaker.update_cluster(ClusterName="c2", InstanceGroups=[group("a", 6)])
    assert groups_of(sagemaker, "c2")["a"]["MinCount"] == 2


@pytest.mark.parametrize(
    "before, change, text",
    [
        ({"Orchestrator": EKS, "VpcConfig": VPC}, {"Orchestrator": OTHER_EKS}, "Orchestrator.Eks on a cluster not supported"),
        ({}, {"Orchestrator": EKS}, "Orchestrator.Eks on a cluster not supported"),
        ({}, {"NodeProvisioningMode": "Continuous"}, "NodeProvisioningMode on a cluster not supported"),
    ],
)
def test_what_a_cluster_is_cannot_be_changed(sagemaker, sessions: Sessions, before, change, text):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], **before)
    as_it_comes_into_service(sessions, "c1")
    with pytest.raises(ClientError, match=text):
        sagemaker.update_cluster(ClusterName="c1", **change)


def test_the_same_orchestrator_may_be_repeated(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], Orchestrator=EKS, VpcConfig=VPC)
    as_it_comes_into_service(sessions, "c1")
    sagemaker.update_cluster(ClusterName="c1", InstanceGroups=[group(count=3)], Orchestrator=EKS)
    assert sagemaker.describe_cluster(ClusterName="c1")["Orchestrator"] == EKS
