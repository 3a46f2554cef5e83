"""Every member has its word: what the table of operations says of it, and what happens to one that it does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import botocore
import pytest
from botocore.model import ServiceModel

from api.aws.schema import sagemaker as model
from api.aws.support import paths, read_request, word_of
from api.aws.table.kinds import Operation, Treatment, honoured, refused
from api.aws.table.refusals import REFUSALS
from api.aws.table.sagemaker import SAGEMAKER
from api.aws.validate import Violated

SERVED = sorted(set(SAGEMAKER) & set(model().operation_names))
"""An older model lacks some operations."""
PINNED = f"botocore=={botocore.__version__}" in Path("constraints.txt").read_text().split()
"""An older model lacks members that the tables tell of."""
SMALL = ServiceModel(
    {
        "metadata": {"serviceId": "Small", "protocol": "json"},
        "operations": {"Make": {"name": "Make", "http": {}, "input": {"shape": "Thing"}}},
        "shapes": {
            "Thing": {
                "type": "structure",
                "required": ["Name"],
                "members": {"Name": {"shape": "Text"}, "Parts": {"shape": "Parts"}, "Labels": {"shape": "Labels"}},
            },
            "Parts": {"type": "list", "member": {"shape": "Part"}},
            "Part": {"type": "structure", "members": {"Size": {"shape": "Text"}, "Inner": {"shape": "Part"}}},
            "Labels": {"type": "map", "key": {"shape": "Text"}, "value": {"shape": "Part"}},
            "Text": {"type": "string", "max": 5},
        },
    }
)
MAKE = SMALL.operation_model("Make")
ALL = ("Name", "Parts", "Parts[].Size", "Parts[].Inner", "Labels", "Labels{}.Size", "Labels{}.Inner")


def operation(members) -> Operation:
    return Operation(lambda given: given, lambda _work, wish: wish, dict, members=members)


def test_every_member_of_a_shape_has_a_path_and_a_shape_within_itself_ends_it():
    assert paths(MAKE.input_shape) == ALL


def test_what_the_table_knows_is_taken_as_it_is():
    wire = {"Name": "a", "Parts": [{"Size": "1"}], "Labels": {"k": {"Size": "2"}}}
    assert read_request(MAKE, operation(honoured(*ALL)), wire) == wire


def test_a_refused_member_is_told_with_its_remedy_beside_every_other_violation():
    table = honoured(*ALL) | refused({"Parts[].Size": "Leave it out."})
    with pytest.raises(Violated) as caught:
        read_request(MAKE, operation(table), {"Name": "too long", "Parts": [{}, {"Size": "1"}]})
    assert str(caught.value) == (
        "2 validation errors detected: Value 'too long' at 'name' failed to satisfy constraint: Member must have length less than or "
        "equal to 5; Value '1' at 'parts.2.member.size' failed to satisfy constraint: Member is not supported by this control plane. "
        "Leave it out"
    )


def test_a_member_that_only_the_installed_model_knows_is_refused_by_name():
    known = honoured(*(path for path in ALL if path != "Labels{}.Size"))
    with pytest.raises(Violated, match=r"Value '2' at 'labels\.k\.member\.size' .* newer than this version of Everstep"):
        read_request(MAKE, operation(known), {"Name": "a", "Labels": {"k": {"Size": "2"}}})


def test_below_a_refused_member_everything_is_refused_and_below_another_nothing_is_said():
    table = refused({"Parts": "No."}) | honoured("Labels")
    assert word_of(table, "Parts[].Inner.Size").treatment is Treatment.REFUSED
    assert word_of(table, "Labels{}.Size") is None
    assert word_of(table, "Name") is None


@pytest.mark.parametrize("name", SERVED)
def test_every_input_member_of_a_served_operation_has_its_word(name):
    operation = SAGEMAKER[name]
    known = paths(model().operation_model(name).input_shape)
    if PINNED:
        assert [path for path in known if word_of(operation.members, path) is None] == []
    assert all(word.note for word in operation.members.values() if word.treatment is Treatment.REFUSED), "a remedy is wanted"


@pytest.mark.parametrize("name", SERVED)
def test_absent_output_members_are_the_model_s_and_say_why(name):
    absent = SAGEMAKER[name].absent
    if PINNED:
        assert set(absent) <= set(paths(model().operation_model(name).output_shape))
    assert all(absent.values())


def test_an_operation_that_tells_of_no_member_takes_what_its_model_has():
    assert read_request(MAKE, replace(operation({})), {"Name": "a"}) == {"Name": "a"}


FAMILY = [
    "CreateCluster",
    "DescribeCluster",
    "UpdateCluster",
    "UpdateClusterSoftware",
    "DeleteCluster",
    "ListClusters",
    "ListClusterNodes",
    "DescribeClusterNode",
    "BatchAddClusterNodes",
    "BatchDeleteClusterNodes",
    "BatchRebootClusterNodes",
    "BatchReplaceClusterNodes",
    "MoveClusterNodes",
    "AttachClusterNodeVolume",
    "DetachClusterNodeVolume",
    "AttachClusterNodeNetworkInterface",
    "ListClusterEvents",
    "DescribeClusterEvent",
    "ListClusterOperations",
    "DescribeClusterOperation",
    "StartClusterHealthCheck",
    "CreateClusterSchedulerConfig",
    "DescribeClusterSchedulerConfig",
    "UpdateClusterSchedulerConfig",
    "DeleteClusterSchedulerConfig",
    "ListClusterSchedulerConfigs",
    "CreateComputeQuota",
    "DescribeComputeQuota",
    "UpdateComputeQuota",
    "DeleteComputeQuota",
    "ListComputeQuotas",
    "CreateClusterExtension",
    "DescribeClusterExtension",
    "UpdateClusterExtension",
    "DeleteClusterExtension",
    "ListClusterExtensions",
    "ListClusterExtensionVersions",
    "SearchTrainingPlanOfferings",
    "CreateTrainingPlan",
    "DescribeTrainingPlan",
    "ListTrainingPlans",
    "ExtendTrainingPlan",
    "DescribeTrainingPlanExtensionHistory",
    "DescribeReservedCapacity",
    "ListUltraServersByReservedCapacity",
    "AddTags",
    "ListTags",
    "DeleteTags",
]
"""The operations of HyperPod clusters."""


def test_every_operation_of_the_family_is_served_or_refused_with_a_remedy():
    assert len(FAMILY) == len(set(FAMILY)) == 48
    assert set(FAMILY) - set(SAGEMAKER) - set(REFUSALS) == set()
    assert set(SAGEMAKER) & set(REFUSALS) == set()


def test_no_operation_around_clusters_is_forgotten_when_the_model_grows():
    if not PINNED:
        pytest.skip("what a newer model has is unknown here, and answered as such")
    around = {name for name in model().operation_names if "Cluster" in name or "TrainingPlan" in name or "ComputeQuota" in name}
    assert around - set(FAMILY) == set()
