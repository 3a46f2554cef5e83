"""Clusters through an unmodified boto3 client: create, describe, list, delete."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from models.cluster.states import ClusterState
from models.session import Sessions
from tests.api.aws.settling import as_it_comes_into_service, settle
from tests.api.installed import needs_fractions_of_seconds
from tests.api.serving import ROLE, Server, group

EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k8s"}}
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}


def test_a_created_cluster_can_be_described_at_once_by_name_and_by_arn(sagemaker):
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])["ClusterArn"]
    by_name = sagemaker.describe_cluster(ClusterName="c1")
    by_arn = sagemaker.describe_cluster(ClusterName=arn)
    assert by_name["ClusterStatus"] == "Creating"
    assert {**by_name, "ResponseMetadata": 0} == {**by_arn, "ResponseMetadata": 0}


def test_groups_come_back_in_the_order_in_which_they_were_sent(sagemaker):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("b"), group("a"), group("c")])
    assert [g["InstanceGroupName"] for g in sagemaker.describe_cluster(ClusterName="c1")["InstanceGroups"]] == ["b", "a", "c"]


def test_what_was_not_sent_stays_absent(sagemaker):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert set(described) == {"ClusterArn", "ClusterName", "ClusterStatus", "CreationTime", "InstanceGroups", "ResponseMetadata"}
    observed = {f"{when}Image{what}" for when in ("Current", "Desired") for what in ("Id", "ReleaseVersion")} | {
        "ImageVersionStatus"
    }
    assert set(described["InstanceGroups"][0]) - observed == {
        "CurrentCount",
        "TargetCount",
        "InstanceGroupName",
        "InstanceType",
        "ExecutionRole",
        "Status",
    }


def test_cluster_wide_members_come_back_as_they_were_sent(sagemaker):
    sent = {
        "VpcConfig": VPC,
        "Orchestrator": EKS,
        "NodeRecovery": "Automatic",
        "NodeProvisioningMode": "Continuous",
        "ClusterRole": ROLE,
        "TieredStorageConfig": {"Mode": "Disable"},
    }
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], **sent)
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert {name: described[name] for name in sent} == sent


@pytest.mark.parametrize("orchestrator", [None, {"Slurm": {}}, EKS])
def test_a_cluster_shows_the_orchestrator_that_it_was_given(sagemaker, orchestrator):
    given = {} if orchestrator is None else {"Orchestrator": orchestrator, "VpcConfig": VPC}
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], **given)
    assert sagemaker.describe_cluster(ClusterName="c1").get("Orchestrator") == orchestrator


def test_a_continuous_cluster_shows_that_its_groups_are_scaling(sagemaker):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], NodeProvisioningMode="Continuous")
    (described,) = sagemaker.describe_cluster(ClusterName="c1")["InstanceGroups"]
    assert described["ActiveOperations"] == {"Scaling": 1}


def test_a_failure_is_told_with_its_reason(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    settle(sessions, "c1", ClusterState.FAILED, why="no capacity for ml.c5.xlarge")
    described = sagemaker.describe_cluster(ClusterName="c1")
    assert (described["ClusterStatus"], described["FailureMessage"]) == ("Failed", "no capacity for ml.c5.xlarge")


def test_a_taken_name_is_refused_and_nothing_is_written(sagemaker):
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])["ClusterArn"]
    with pytest.raises(sagemaker.exceptions.ResourceInUse, match="already exists"):
        sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group("other")])
    assert [c["ClusterArn"] for c in sagemaker.list_clusters()["ClusterSummaries"]] == [arn]


def test_a_name_is_taken_until_its_cluster_is_gone_and_then_gets_a_new_arn(sagemaker, sessions: Sessions):
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])["ClusterArn"]
    as_it_comes_into_service(sessions, "c1")
    sagemaker.delete_cluster(ClusterName="c1")
    with pytest.raises(sagemaker.exceptions.ResourceInUse):
        sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    settle(sessions, "c1", ClusterState.DELETED)
    assert sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])["ClusterArn"] != arn
    with pytest.raises(sagemaker.exceptions.ResourceNotFound):
        sagemaker.describe_cluster(ClusterName=arn)


def test_an_eks_cluster_can_be_held_by_one_cluster_only(sagemaker):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], Orchestrator=EKS, VpcConfig=VPC)
    with pytest.raises(ClientError, match=r"Specified cluster external resource id arn:aws:eks.* already in use") as refused:
        sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()], Orchestrator=EKS, VpcConfig=VPC)
    assert refused.value.response["Error"]["Code"] == "ValidationException"


@pytest.mark.parametrize(
    "operation", ["describe_cluster", "delete_cluster", "update_cluster", "list_cluster_nodes", "list_cluster_events"]
)
@pytest.mark.parametrize("name", ["nope", "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl"])
def test_a_missing_cluster_does_not_exist_for_any_operation(sagemaker, operation, name):
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="does not exist"):
        getattr(sagemaker, operation)(ClusterName=name)


def test_deleting_answers_at_once_and_again_until_the_cluster_is_gone(sagemaker, sessions: Sessions):
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])["ClusterArn"]
    as_it_comes_into_service(sessions, "c1")
    assert sagemaker.delete_cluster(ClusterName="c1")["ClusterArn"] == arn
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Deleting"
    assert sagemaker.delete_cluster(ClusterName=arn)["ClusterArn"] == arn
    with pytest.raises(sagemaker.exceptions.ConflictException, match="is being deleted; an update is not possible any more"):
        sagemaker.update_cluster(ClusterName="c1", NodeRecovery="None")
    settle(sessions, "c1", ClusterState.DELETED)
    for call in (sagemaker.describe_cluster, sagemaker.delete_cluster):
        with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="does not exist"):
            call(ClusterName="c1")


def test_a_classic_cluster_in_transition_cannot_be_deleted_but_a_continuous_one_can(sagemaker):
    sagemaker.create_cluster(ClusterName="classic", InstanceGroups=[group()])
    sagemaker.create_cluster(ClusterName="continuous", InstanceGroups=[group()], NodeProvisioningMode="Continuous")
    with pytest.raises(sagemaker.exceptions.ConflictException, match="classic"):
        sagemaker.delete_cluster(ClusterName="classic")
    sagemaker.delete_cluster(ClusterName="continuous")
    assert sagemaker.describe_cluster(ClusterName="classic")["ClusterStatus"] == "Creating"


def test_a_classic_cluster_that_rolls_back_can_be_deleted_since_it_may_never_come_to_an_end(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    settle(sessions, "c1", ClusterState.ROLLING_BACK, why="no capacity")
    sagemaker.delete_cluster(ClusterName="c1")
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Deleting"


def test_a_failed_cluster_can_be_deleted(sagemaker, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    settle(sessions, "c1", ClusterState.FAILED, why="no capacity")
    sagemaker.delete_cluster(ClusterName="c1")
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Deleting"


class TestListing:
    """Seven clusters, every order and page size, and tokens that belong to their question."""

    NAMES = ("delta", "alpha", "echo", "bravo", "golf", "charlie", "Foxtrot")

    @pytest.fixture(autouse=True)
    def clusters(self, sagemaker):
        for name in self.NAMES:
            sagemaker.create_cluster(ClusterName=name, InstanceGroups=[group()])

    @pytest.mark.parametrize("order", ["Ascending", "Descending"])
    @pytest.mark.parametrize("size", [1, 3, 7, 100])
    def test_pages_show_each_cluster_once_in_order_of_creation(self, sagemaker, size, order):
        pages = sagemaker.get_paginator("list_clusters").paginate(SortOrder=order, PaginationConfig={"PageSize": size})
        names = [c["ClusterName"] for page in pages for c in page["ClusterSummaries"]]
        assert names == list(self.NAMES if order == "Ascending" else reversed(self.NAMES))

    def test_names_sort_by_code_point(self, sagemaker):
        pages = sagemaker.get_paginator("list_clusters").paginate(SortBy="NAME", PaginationConfig={"PageSize": 2})
        assert [c["ClusterName"] for page in pages for c in page["ClusterSummaries"]] == sorted(self.NAMES)

    def test_a_cluster_that_is_deleted_between_two_pages_hides_no_other(self, sagemaker, sessions: Sessions):
        first = sagemaker.list_clusters(MaxResults=3)
        settle(sessions, "alpha", ClusterState.DELETING, ClusterState.DELETED)
        rest = sagemaker.list_clusters(MaxResults=100, NextToken=first["NextToken"])
        assert [c["ClusterName"] for c in rest["ClusterSummaries"]] == list(self.NAMES[3:])
        assert "NextToken" not in rest

    def test_a_name_filter_looks_inside_names_and_takes_no_wildcards(self, sagemaker):
        shown = sagemaker.list_clusters(NameContains="lph")["ClusterSummaries"]
        assert [c["ClusterName"] for c in shown] == ["alpha"]

    def test_bounds_in_time_mean_the_times_that_are_shown(self, sagemaker):
        needs_fractions_of_seconds(sagemaker)
        shown = sagemaker.list_clusters()["ClusterSummaries"]
        for bound in {c["CreationTime"] for c in shown}:
            after = sagemaker.list_clusters(CreationTimeAfter=bound)["ClusterSummaries"]
            before = sagemaker.list_clusters(CreationTimeBefore=bound)["ClusterSummaries"]
            assert after == [c for c in shown if c["CreationTime"] > bound]
            assert before == [c for c in shown if c["CreationTime"] < bound]
        assert sagemaker.list_clusters(CreationTimeAfter="2100-01-01T00:00:00Z")["ClusterSummaries"] == []
        assert sagemaker.list_clusters(CreationTimeAfter=1)["ClusterSummaries"] == shown

    @pytest.mark.parametrize(
        "other",
        [
            {"SortOrder": "Descending"},
            {"SortBy": "NAME"},
            {"NameContains": "a"},
            {"NextToken": "AAAA"},
            {"NextToken": "not/base64!"},
        ],
    )
    def test_a_token_of_another_question_is_refused(self, sagemaker, other):
        token = sagemaker.list_clusters(MaxResults=2)["NextToken"]
        with pytest.raises(ClientError, match="NextToken is invalid") as refused:
            sagemaker.list_clusters(**({"MaxResults": 2, "NextToken": token} | other))
        assert refused.value.response["Error"]["Code"] == "ValidationException"

    def test_a_token_is_not_taken_by_another_operation(self, sagemaker):
        token = sagemaker.list_clusters(MaxResults=2)["NextToken"]
        with pytest.raises(ClientError, match="NextToken is invalid"):
            sagemaker.list_cluster_nodes(ClusterName="alpha", NextToken=token)


def test_a_page_token_survives_a_restart_of_the_server(server: Server, serve, sagemaker):
    for name in ("a", "b"):
        sagemaker.create_cluster(ClusterName=name, InstanceGroups=[group()])
    token = sagemaker.list_clusters(MaxResults=1)["NextToken"]
    another = serve(server.settings).client()
    assert [c["ClusterName"] for c in another.list_clusters(MaxResults=1, NextToken=token)["ClusterSummaries"]] == ["b"]


def test_two_callers_who_create_the_same_name_at_once_get_one_cluster(server: Server, sagemaker):
    def create(_: int) -> str:
        try:
            sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
        except ClientError as error:
            return error.response["Error"]["Code"]
        return "created"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(create, range(8)))
    assert sorted(outcomes) == ["ResourceInUse"] * 7 + ["created"]


def test_two_callers_who_take_the_same_eks_cluster_at_once_get_it_once(sagemaker):
    def create(number: int) -> str:
        try:
            sagemaker.create_cluster(ClusterName=f"c{number}", InstanceGroups=[group()], Orchestrator=EKS, VpcConfig=VPC)
        except ClientError as error:
            return error.response["Error"]["Code"]
        return "created"

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(create, range(6)))
    assert sorted(outcomes) == ["ValidationException"] * 5 + ["created"]


def test_an_endpoint_with_a_path_in_front_is_served_as_well(server: Server):
    client = server.client(endpoint_url=f"{server.url}/some/prefix%20here")
    client.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    assert [c["ClusterName"] for c in client.list_clusters()["ClusterSummaries"]] == ["c1"]
