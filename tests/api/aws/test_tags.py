"""Tags through an unmodified boto3 client."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.api.serving import group

MISSING = "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl"


def tags(**pairs: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in pairs.items()]


@pytest.fixture
def arn(sagemaker) -> str:
    return sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group()], Tags=tags(z="1", a="2"))["ClusterArn"]


def test_tags_of_a_creation_come_back_in_the_caller_s_order(sagemaker, arn):
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == tags(z="1", a="2")


def test_adding_overwrites_by_key_and_returns_all(sagemaker, arn):
    assert sagemaker.add_tags(ResourceArn=arn, Tags=tags(a="3", m="4"))["Tags"] == tags(z="1", a="3", m="4")


def test_deleting_ignores_keys_that_are_not_there(sagemaker, arn):
    sagemaker.delete_tags(ResourceArn=arn, TagKeys=["z", "nope"])
    assert sagemaker.list_tags(ResourceArn=arn, MaxResults=50)["Tags"] == tags(a="2")


def test_letters_of_all_scripts_are_tags(sagemaker, arn):
    sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "équipe", "Value": "研究 部"}])
    assert {"Key": "équipe", "Value": "研究 部"} in sagemaker.list_tags(ResourceArn=arn)["Tags"]


def test_no_resource_has_more_than_fifty(sagemaker, arn):
    more = [{"Key": f"k{number}", "Value": ""} for number in range(49)]
    with pytest.raises(sagemaker.exceptions.ResourceLimitExceeded, match="51; the limit is 50"):
        sagemaker.add_tags(ResourceArn=arn, Tags=more)
    assert len(sagemaker.list_tags(ResourceArn=arn)["Tags"]) == 2
    assert len(sagemaker.add_tags(ResourceArn=arn, Tags=more[:48])["Tags"]) == 50


@pytest.mark.parametrize(
    "wrong, text",
    [
        ([{"Key": "aws:x", "Value": ""}], "reserved"),
        ([{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}], "twice"),
        ([{"Key": "a", "Value": "\u2603"}], "regular expression"),
    ],
)
def test_wrong_tags_are_refused_everywhere(sagemaker, arn, wrong, text):
    for call in (
        lambda: sagemaker.add_tags(ResourceArn=arn, Tags=wrong),
        lambda: sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()], Tags=wrong),
    ):
        with pytest.raises(ClientError, match=text) as refused:
            call()
        assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert sagemaker.list_tags(ResourceArn=arn)["Tags"] == tags(z="1", a="2")
    assert len(sagemaker.list_clusters()["ClusterSummaries"]) == 1


def test_what_does_not_exist_has_no_tags(sagemaker):
    for call in (
        lambda: sagemaker.list_tags(ResourceArn=MISSING),
        lambda: sagemaker.add_tags(ResourceArn=MISSING, Tags=tags(a="1")),
        lambda: sagemaker.delete_tags(ResourceArn=MISSING, TagKeys=["a"]),
    ):
        with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="does not exist"):
            call()


def test_a_resource_of_another_kind_is_not_called_a_cluster(sagemaker):
    other = "arn:aws:sagemaker:us-east-1:123456789012:notebook-instance/mine"
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match=f"Resource '{other}' does not exist"):
        sagemaker.list_tags(ResourceArn=other)


def test_a_page_token_for_tags_is_none_of_ours(sagemaker, arn):
    with pytest.raises(ClientError, match="NextToken is invalid"):
        sagemaker.list_tags(ResourceArn=arn, NextToken="x")
