"""Compute quotas through an unmodified boto3 client."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from models.cluster.states import ClusterState
from tests.api.aws.settling import settle
from tests.api.installed import needs_fractions_of_seconds
from tests.api.serving import group

ELSEWHERE = "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl"
TARGET = {"TeamName": "vision"}
COUNTED = {"ComputeQuotaResources": [{"InstanceType": "ml.p5.48xlarge", "Count": 2}]}
WHOLE = {
    "ComputeQuotaResources": [
        {"InstanceType": "ml.p5.48xlarge", "Accelerators": 8, "VCpu": 96.0, "MemoryInGiB": 512.5},
        {"InstanceType": "ml.p4d.24xlarge", "AcceleratorPartition": {"Type": "mig-1g.5gb", "Count": 3}},
        {"InstanceType": "ml.p4d.24xlarge", "AcceleratorPartition": {"Type": "mig-2g.10gb", "Count": 1}},
    ],
    "ResourceSharingConfig": {
        "Strategy": "LendAndBorrow",
        "BorrowLimit": 200,
        "AbsoluteBorrowLimits": [{"InstanceType": "ml.p5.48xlarge", "Accelerators": 4}],
    },
    "PreemptTeamTasks": "Never",
}


@pytest.fixture
def arn(sagemaker) -> str:
    return sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()])["ClusterArn"]


@pytest.fixture
def quota(sagemaker, arn) -> str:
    return create(sagemaker, arn)["ComputeQuotaId"]


def create(sagemaker, arn, name="q1", **changes):
    return sagemaker.create_compute_quota(
        **{"Name": name, "ClusterArn": arn, "ComputeQuotaConfig": COUNTED, "ComputeQuotaTarget": TARGET} | changes
    )


def code_of(error) -> str:
    return error.value.response["Error"]["Code"]


def test_everything_that_was_sent_is_described(sagemaker, arn):
    target = {"TeamName": "vision", "FairShareWeight": 30}
    made = create(
        sagemaker, arn, ComputeQuotaConfig=WHOLE, ComputeQuotaTarget=target, ActivationState="Disabled", Description="Für alle."
    )
    told = sagemaker.describe_compute_quota(ComputeQuotaId=made["ComputeQuotaId"])
    expected = {
        "ComputeQuotaArn": f"arn:aws:sagemaker:us-east-1:123456789012:compute-quota/{made['ComputeQuotaId']}",
        "Name": "q1",
        "ComputeQuotaVersion": 1,
        "Status": "Created",
        "ClusterArn": arn,
        "ComputeQuotaConfig": WHOLE,
        "ComputeQuotaTarget": target,
        "ActivationState": "Disabled",
        "Description": "Für alle.",
    }
    assert {name: told[name] for name in expected} == expected
    assert made["ComputeQuotaArn"] == told["ComputeQuotaArn"]
    assert told["CreatedBy"] == told["LastModifiedBy"]
    assert told["CreatedBy"]["IamIdentity"]["Arn"].startswith("arn:aws:iam::123456789012:user/")
    assert told["CreationTime"] == told["LastModifiedTime"]


def test_what_was_left_out_is_told_by_its_default(sagemaker, quota):
    told = sagemaker.describe_compute_quota(ComputeQuotaId=quota)
    assert told["ActivationState"] == "Enabled"
    assert told["ComputeQuotaTarget"] == {"TeamName": "vision", "FairShareWeight": 0}
    assert told["ComputeQuotaConfig"]["ResourceSharingConfig"] == {"Strategy": "LendAndBorrow", "BorrowLimit": 50}
    assert told["ComputeQuotaConfig"]["PreemptTeamTasks"] == "LowerPriority"
    assert "Description" not in told


def test_an_update_makes_a_version_and_the_one_before_is_kept(sagemaker, quota):
    lend = {"ResourceSharingConfig": {"Strategy": "Lend"}}
    made = sagemaker.update_compute_quota(ComputeQuotaId=quota, TargetVersion=1, ComputeQuotaConfig=lend, Description="two")
    assert made["ComputeQuotaVersion"] == 2
    newest = sagemaker.describe_compute_quota(ComputeQuotaId=quota)
    assert (newest["ComputeQuotaVersion"], newest["Status"], newest["Description"]) == (2, "Updated", "two")
    assert newest["ComputeQuotaConfig"] == {"ResourceSharingConfig": {"Strategy": "Lend"}, "PreemptTeamTasks": "LowerPriority"}
    assert newest["ComputeQuotaTarget"]["TeamName"] == "vision"
    first = sagemaker.describe_compute_quota(ComputeQuotaId=quota, ComputeQuotaVersion=1)
    assert (first["ComputeQuotaVersion"], first["Status"]) == (1, "Updated")
    assert first["ComputeQuotaConfig"]["ComputeQuotaResources"] == COUNTED["ComputeQuotaResources"]
    assert "Description" not in first
    assert first["LastModifiedTime"] < newest["LastModifiedTime"]


def test_a_version_that_never_was_is_not_found(sagemaker, quota):
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="Version 2 of Compute quota"):
        sagemaker.describe_compute_quota(ComputeQuotaId=quota, ComputeQuotaVersion=2)


def test_an_update_that_has_seen_an_old_version_is_in_conflict(sagemaker, quota):
    sagemaker.update_compute_quota(ComputeQuotaId=quota, TargetVersion=1)
    with pytest.raises(sagemaker.exceptions.ConflictException, match="TargetVersion 1 is not the newest version"):
        sagemaker.update_compute_quota(ComputeQuotaId=quota, TargetVersion=1, ActivationState="Disabled")
    told = sagemaker.describe_compute_quota(ComputeQuotaId=quota)
    assert (told["ComputeQuotaVersion"], told["ActivationState"]) == (2, "Enabled")


def test_a_cluster_has_a_name_once_and_a_team_once(sagemaker, arn, quota):
    with pytest.raises(sagemaker.exceptions.ConflictException, match="Compute quota with Name 'q1' already exists"):
        create(sagemaker, arn, ComputeQuotaTarget={"TeamName": "speech"})
    with pytest.raises(sagemaker.exceptions.ConflictException, match="Compute quota with TeamName 'vision' already exists"):
        create(sagemaker, arn, "q2")
    speech = create(sagemaker, arn, "q2", ComputeQuotaTarget={"TeamName": "speech"})["ComputeQuotaId"]
    with pytest.raises(sagemaker.exceptions.ConflictException, match="TeamName 'vision'"):
        sagemaker.update_compute_quota(ComputeQuotaId=speech, TargetVersion=1, ComputeQuotaTarget=TARGET)
    other = sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()])["ClusterArn"]
    create(sagemaker, other)


def test_a_deleted_quota_is_gone_and_leaves_its_name_and_team(sagemaker, arn, quota):
    sagemaker.delete_compute_quota(ComputeQuotaId=quota)
    for call in (
        lambda: sagemaker.describe_compute_quota(ComputeQuotaId=quota),
        lambda: sagemaker.describe_compute_quota(ComputeQuotaId=quota, ComputeQuotaVersion=1),
        lambda: sagemaker.delete_compute_quota(ComputeQuotaId=quota),
        lambda: sagemaker.update_compute_quota(ComputeQuotaId=quota, TargetVersion=1),
    ):
        with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="does not exist"):
            call()
    assert sagemaker.list_compute_quotas()["ComputeQuotaSummaries"] == []
    create(sagemaker, arn)


def test_a_quota_needs_a_cluster_that_stays(sagemaker, arn, quota, sessions):
    with pytest.raises(ClientError, match="does not exist") as error:
        create(sagemaker, ELSEWHERE)
    assert code_of(error) == "ResourceNotFound"
    settle(sessions, "c1", ClusterState.IN_SERVICE, ClusterState.DELETING)
    with pytest.raises(sagemaker.exceptions.ConflictException, match="is being deleted"):
        create(sagemaker, arn, "q2", ComputeQuotaTarget={"TeamName": "speech"})
    assert sagemaker.describe_compute_quota(ComputeQuotaId=quota)["Status"] == "Created"
    settle(sessions, "c1", ClusterState.DELETED)
    with pytest.raises(sagemaker.exceptions.ResourceNotFound):
        sagemaker.describe_compute_quota(ComputeQuotaId=quota)


def resources(**amounts):
    return {"ComputeQuotaResources": [{"InstanceType": "ml.p4d.24xlarge", **amounts}]}


def sharing(strategy, **members):
    return {"ResourceSharingConfig": {"Strategy": strategy, **members}}


@pytest.mark.parametrize(
    "config, text",
    [
        (resources(), "no amount"),
        (resources(Count=1, VCpu=4.0), "Count, which is of whole instances, together with VCpu"),
        (resources(Accelerators=1, AcceleratorPartition={"Type": "mig-1g.5gb", "Count": 1}), "whole ones or partitions"),
        (resources(AcceleratorPartition={"Type": "mig-1g.18gb", "Count": 1}), "It has mig-1g.5gb, mig-2g.10gb"),
        ({"ComputeQuotaResources": [{"InstanceType": "ml.c5.xlarge", "Accelerators": 1}]}, "that type has none"),
        (
            {
                "ComputeQuotaResources": [
                    {"InstanceType": "ml.g5.xlarge", "AcceleratorPartition": {"Type": "mig-1g.5gb", "Count": 1}}
                ]
            },
            "cannot be partitioned",
        ),
        ({"ComputeQuotaResources": 2 * [{"InstanceType": "ml.c5.xlarge", "Count": 1}]}, "given twice"),
        (sharing("Lend", BorrowLimit=10), "BorrowLimit needs the Strategy LendAndBorrow"),
        (sharing("DontLend", AbsoluteBorrowLimits=[]), "AbsoluteBorrowLimits needs the Strategy LendAndBorrow"),
        (sharing("LendAndBorrow", BorrowLimit=0), "from 1 to 500"),
        (sharing("LendAndBorrow", BorrowLimit=501), "from 1 to 500"),
        (sharing("LendAndBorrow", AbsoluteBorrowLimits=[{"InstanceType": "ml.c5.xlarge"}]), "AbsoluteBorrowLimits of ml.c5.xlarge"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_in_creations_and_updates(sagemaker, arn, quota, config, text):
    for call in (
        lambda: create(sagemaker, arn, "q2", ComputeQuotaTarget={"TeamName": "speech"}, ComputeQuotaConfig=config),
        lambda: sagemaker.update_compute_quota(ComputeQuotaId=quota, TargetVersion=1, ComputeQuotaConfig=config),
    ):
        with pytest.raises(ClientError, match=text) as error:
            call()
        assert code_of(error) == "ValidationException"
    assert len(sagemaker.list_compute_quotas()["ComputeQuotaSummaries"]) == 1


def test_quotas_have_tags_of_their_own(sagemaker, arn):
    made = create(sagemaker, arn, Tags=[{"Key": "a", "Value": "1"}])
    quota = made["ComputeQuotaArn"]
    assert sagemaker.add_tags(ResourceArn=quota, Tags=[{"Key": "b", "Value": "2"}])["Tags"] == [
        {"Key": "a", "Value": "1"},
        {"Key": "b", "Value": "2"},
    ]
    sagemaker.delete_tags(ResourceArn=quota, TagKeys=["a"])
    assert sagemaker.list_tags(ResourceArn=quota)["Tags"] == [{"Key": "b", "Value": "2"}]
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == []
    sagemaker.delete_compute_quota(ComputeQuotaId=made["ComputeQuotaId"])
    with pytest.raises(ClientError, match=r"Compute quota .* does not exist"):
        sagemaker.list_tags(ResourceArn=quota)


@pytest.fixture
def three(sagemaker, arn) -> str:
    """Quotas b, a, c in the order of their creation: c on a second cluster, a updated."""
    other = sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()])["ClusterArn"]
    create(sagemaker, arn, "b")
    second = create(sagemaker, arn, "a", ComputeQuotaTarget={"TeamName": "speech"})["ComputeQuotaId"]
    create(sagemaker, other, "c")
    sagemaker.update_compute_quota(ComputeQuotaId=second, TargetVersion=1, ActivationState="Disabled")
    return other


def names(sagemaker, **question) -> str:
    pages = sagemaker.get_paginator("list_compute_quotas").paginate(PaginationConfig={"PageSize": 1}, **question)
    return "".join(row["Name"] for page in pages for row in page["ComputeQuotaSummaries"])


def test_listings_are_sorted_as_asked_and_newest_first_by_default(sagemaker, arn, three):
    assert names(sagemaker) == "cab"
    assert names(sagemaker, SortOrder="Ascending") == "bac"
    assert names(sagemaker, SortBy="Name", SortOrder="Ascending") == "abc"
    assert names(sagemaker, SortBy="Status") == names(sagemaker, SortBy="Status", SortOrder="Ascending")[::-1]
    assert names(sagemaker, SortBy="Status")[0] == "a"
    by_cluster = names(sagemaker, SortBy="ClusterArn", SortOrder="Ascending")
    assert by_cluster[-1 if three > arn else 0] == "c"


def test_listings_are_filtered_by_all_that_can_be_asked(sagemaker, arn, three):
    assert names(sagemaker, ClusterArn=three) == "c"
    assert names(sagemaker, ClusterArn=ELSEWHERE) == ""
    assert names(sagemaker, NameContains="a") == "a"
    assert names(sagemaker, Status="Updated") == "a"
    assert names(sagemaker, Status="CreateFailed") == ""
    needs_fractions_of_seconds(sagemaker)
    oldest, *_, newest = (
        row["CreationTime"] for row in sagemaker.list_compute_quotas(SortOrder="Ascending")["ComputeQuotaSummaries"]
    )
    assert names(sagemaker, CreatedAfter=newest) == ""
    assert "b" not in names(sagemaker, CreatedAfter=oldest)
    assert names(sagemaker, CreatedBefore=oldest) == ""


def test_a_summary_shows_what_holds_now(sagemaker, three):
    row = sagemaker.list_compute_quotas(NameContains="a")["ComputeQuotaSummaries"][0]
    told = sagemaker.describe_compute_quota(ComputeQuotaId=row["ComputeQuotaId"])
    assert row == {name: told[name] for name in row}
    assert set(row) == {
        "ComputeQuotaArn",
        "ComputeQuotaId",
        "Name",
        "ComputeQuotaVersion",
        "Status",
        "ClusterArn",
        "ComputeQuotaConfig",
        "ComputeQuotaTarget",
        "ActivationState",
        "CreationTime",
        "LastModifiedTime",
    }
