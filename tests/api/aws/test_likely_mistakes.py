"""The fifteen ways in which a server of this API is most likely to be wrong: what other tests do not hold, and a list of those that do."""

from __future__ import annotations

import ast
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from api.aws.schema import sagemaker as model
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.serving import ROLE, Server, group

TESTS = Path(__file__).parents[2]

HELD_BY: dict[str, list[str]] = {
    "1 the code is __type in the body; modelled codes have no suffix; all are 400": [
        "api/aws/test_tables.py::test_modelled_codes_are_spelt_as_the_model_spells_them",
        "api/aws/test_likely_mistakes.py::test_every_modelled_error_is_a_400_that_clients_raise_by_its_name",
    ],
    "2 what will not pass by itself is never a 5xx": [
        "api/aws/test_tables.py::test_only_what_passes_by_itself_is_answered_with_5xx",
        "reports/test_nothing_vanishes.py::test_no_operation_of_the_service_is_answered_with_silence",
    ],
    "3 the scope is sagemaker, the host has its port, the raw body is hashed, a session token is signed": [
        "api/aws/test_bad_input.py::test_both_scopes_and_a_signed_session_token_are_accepted",
        "api/aws/test_bad_input.py::test_whoever_cannot_prove_who_they_are_gets_403",
        "api/aws/test_clusters.py::test_an_endpoint_with_a_path_in_front_is_served_as_well",
    ],
    "4 times are seconds since the epoch": ["api/aws/test_likely_mistakes.py::test_a_time_is_a_number_of_seconds"],
    "5 the ARN ends in an id; name and ARN are one, where both are taken; a name that is used again gets a new ARN": [
        "api/aws/test_clusters.py::test_a_created_cluster_can_be_described_at_once_by_name_and_by_arn",
        "api/aws/test_clusters.py::test_a_name_is_taken_until_its_cluster_is_gone_and_then_gets_a_new_arn",
        "api/aws/test_likely_mistakes.py::test_what_takes_an_arn_alone_takes_no_name",
    ],
    "6 the server enforces what botocore does not": [
        "api/aws/test_from_the_model.py::test_every_constraint_that_is_broken_is_told_with_its_member",
    ],
    "7 a continuous cluster stays in service while it scales; a classic one is updating, all or nothing": [
        "api/aws/test_update.py::test_a_continuous_cluster_stays_in_service_and_can_be_updated_again_at_once",
        "api/aws/test_clusters.py::test_a_continuous_cluster_shows_that_its_groups_are_scaling",
        "workers/reconcilers/test_clusters.py::test_without_capacity_a_classic_update_is_undone",
    ],
    "8 an update merges by name; groups go only when named for it; the last cannot; leaving out an immutable member changes it": [
        "api/aws/test_update.py::test_a_group_is_deleted_only_when_it_is_named_for_deletion",
        "api/aws/test_update.py::test_an_immutable_member_cannot_be_changed_nor_left_out",
        "api/aws/test_likely_mistakes.py::test_the_last_group_cannot_go",
    ],
    "9 details have other members than specifications": [
        "api/aws/test_from_the_model.py::test_every_member_of_a_cluster_comes_back_as_it_was_sent",
    ],
    "10 Code of deletions and ErrorCode of reboots and replacements; a deletion that fails altogether is a 400": [
        "api/aws/test_batches.py::test_when_nothing_can_be_deleted_every_reason_is_told",
        "api/aws/test_batches.py::test_failures_of_a_reboot_are_told_with_success_of_the_call",
    ],
    "11 a deletion lowers the target; a replacement keeps it and the logical id; a reboot keeps everything": [
        "api/aws/test_batches.py::test_chosen_nodes_go_and_the_target_follows",
        "api/aws/test_batches.py::test_a_reboot_keeps_and_a_replacement_changes_the_instance",
    ],
    "12 a client token is remembered with what came of it; additions, events and logical ids are for continuous clusters": [
        "api/aws/test_batches.py::test_a_repeated_addition_is_told_of_the_same_nodes_and_adds_none",
        "api/aws/test_batches.py::test_nodes_are_added_to_continuous_clusters_only_and_fifty_at_most",
        "api/aws/test_batches.py::test_logical_ids_need_a_continuous_cluster",
        "api/aws/test_nodes.py::test_a_classic_cluster_shows_none_and_says_why",
    ],
    "13 orders by default, bounds of pages, tokens that advance, nodes without an id": [
        "api/aws/test_clusters.py::test_pages_show_each_cluster_once_in_order_of_creation",
        "api/aws/test_nodes.py::test_the_newest_comes_first_unless_asked_otherwise",
        "api/aws/test_nodes.py::test_a_node_without_an_instance_shows_only_with_logical_ids",
        "api/aws/test_quotas.py::test_listings_are_sorted_as_asked_and_newest_first_by_default",
        "api/aws/test_likely_mistakes.py::test_a_page_of_tags_is_fifty_at_least_and_the_last_page_has_no_token",
    ],
    "14 deletion is seen to happen; names and EKS clusters stay taken meanwhile; minimums have three hours": [
        "api/aws/test_clusters.py::test_deleting_answers_at_once_and_again_until_the_cluster_is_gone",
        "api/aws/test_likely_mistakes.py::test_an_eks_cluster_stays_taken_until_its_cluster_is_gone",
        "workers/reconcilers/test_capacity.py::test_a_new_group_that_misses_its_minimum_goes_back_to_nothing_and_an_error_says_why",
        "api/aws/test_tables.py::test_every_state_is_projected_onto_the_model_s_enum",
    ],
    "15 event details are doubly nested with one kind of metadata; AutoScaling has its Status; Compute, not Worker; groups always": [
        "api/aws/test_operations.py::test_an_event_in_detail_has_exactly_one_kind_of_metadata",
        "api/aws/test_likely_mistakes.py::test_what_an_answer_must_have_is_there_even_when_it_is_empty",
        "api/aws/test_likely_mistakes.py::test_autoscaling_is_told_with_its_status",
        "api/aws/test_likely_mistakes.py::test_a_slurm_node_is_compute_and_not_worker",
    ],
}
EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k8s"}}
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
KARPENTER = {
    "Orchestrator": EKS,
    "VpcConfig": VPC,
    "NodeProvisioningMode": "Continuous",
    "ClusterRole": ROLE,
    "AutoScaling": {"Mode": "Enable", "AutoScalerType": "Karpenter"},
}


@pytest.mark.parametrize("mistake", HELD_BY)
def test_each_likely_mistake_is_held_by_tests_that_exist(mistake: str):
    for reference in HELD_BY[mistake]:
        file, _, name = reference.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, reference


def test_every_modelled_error_is_a_400_that_clients_raise_by_its_name(sagemaker: Any):
    def raised(expected: Any, call: Any) -> None:
        with pytest.raises(expected) as refused:
            call()
        answer = refused.value.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert answer["Error"]["Code"] == expected.__name__
        assert answer["ResponseMetadata"]["RetryAttempts"] == 0

    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    raised(sagemaker.exceptions.ResourceInUse, lambda: sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()]))
    raised(sagemaker.exceptions.ResourceNotFound, lambda: sagemaker.describe_cluster(ClusterName="c2"))
    raised(sagemaker.exceptions.ConflictException, lambda: sagemaker.delete_cluster(ClusterName="c1"))


def test_a_time_is_a_number_of_seconds(server: Server, sessions: Sessions):
    wish = {"ClusterName": "c1", "InstanceGroups": [group()], "NodeProvisioningMode": "Continuous"}
    before = time.time()
    server.call("CreateCluster", wish)
    with unit_of_work(sessions) as session:
        rows.node(session, rows.clusters.find(session, "c1"), now=datetime.now(UTC))
    told = {"ClusterName": "c1"}
    (node,) = server.call("ListClusterNodes", told).json()["ClusterNodeSummaries"]
    times = [
        server.call("DescribeCluster", told).json()["CreationTime"],
        server.call("ListClusters", {}).json()["ClusterSummaries"][0]["CreationTime"],
        server.call("ListClusterEvents", told).json()["Events"][0]["EventTime"],
        node["LaunchTime"],
        server.call("DescribeClusterNode", told | {"NodeId": node["InstanceId"]}).json()["NodeDetails"]["LaunchTime"],
    ]
    assert all(isinstance(moment, float | int) for moment in times)
    assert all(before - 1 <= moment <= time.time() + 1 for moment in times), times


def test_what_takes_an_arn_alone_takes_no_name(server: Server):
    """By the installed model: an older one has fewer such operations."""
    taking = [
        (name, member)
        for name in model().operation_names
        for member, shape in model().operation_model(name).input_shape.members.items()
        if shape.name == "ClusterArn" and server.call(name, {}).json().get("__type") != "UnknownOperationException"
    ]
    assert len(taking) >= 4
    for name, member in taking:
        said = server.call(name, {member: "c1"}).json()
        assert said["__type"] == "ValidationException", name
        assert f"'{member[0].lower()}{member[1:]}'" in said["message"], name


def test_the_last_group_cannot_go(sagemaker: Any, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])
    as_it_comes_into_service(sessions, "c1")
    with pytest.raises(ClientError, match="at least one") as refused:
        sagemaker.update_cluster(ClusterName="c1", InstanceGroupsToDelete=["workers"])
    assert refused.value.response["Error"]["Code"] == "ValidationException"


def test_a_page_of_tags_is_fifty_at_least_and_the_last_page_has_no_token(sagemaker: Any, server: Server):
    tags = [{"Key": f"key-{number}", "Value": ""} for number in range(50)]
    arn = sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], Tags=tags)["ClusterArn"]
    assert server.call("ListTags", {"ResourceArn": arn, "MaxResults": 49}).json()["__type"] == "ValidationException"
    whole = server.call("ListTags", {"ResourceArn": arn, "MaxResults": 50}).json()
    assert whole == {"Tags": tags}


def test_an_eks_cluster_stays_taken_until_its_cluster_is_gone(sagemaker: Any, sessions: Sessions):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], Orchestrator=EKS, VpcConfig=VPC)
    as_it_comes_into_service(sessions, "c1")
    sagemaker.delete_cluster(ClusterName="c1")
    assert sagemaker.describe_cluster(ClusterName="c1")["ClusterStatus"] == "Deleting"
    with pytest.raises(ClientError, match="already in use"):
        sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()], Orchestrator=EKS, VpcConfig=VPC)


def test_what_an_answer_must_have_is_there_even_when_it_is_empty(server: Server):
    restricted = {name: value for name, value in group().items() if name != "InstanceType"} | {"InstanceType": "ml.p5.48xlarge"}
    created = server.call("CreateCluster", {"ClusterName": "c1", "RestrictedInstanceGroups": [restricted]})
    assert created.status_code == 200, created.text
    assert server.call("DescribeCluster", {"ClusterName": "c1"}).json()["InstanceGroups"] == []
    assert server.call("ListClusterNodes", {"ClusterName": "c1"}).json() == {"ClusterNodeSummaries": []}


def test_autoscaling_is_told_with_its_status(sagemaker: Any):
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], **KARPENTER)
    told = sagemaker.describe_cluster(ClusterName="c1")["AutoScaling"]
    assert {name: told[name] for name in ("Mode", "AutoScalerType")} == KARPENTER["AutoScaling"]
    assert told["Status"] in model().shape_for("ClusterAutoScalingStatus").enum


def test_a_slurm_node_is_compute_and_not_worker(server: Server):
    said = server.call("CreateCluster", {"ClusterName": "c1", "InstanceGroups": [group(SlurmConfig={"NodeType": "Worker"})]}).json()
    assert said["__type"] == "ValidationException"
    assert "Compute" in said["message"]
