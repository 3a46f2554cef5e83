"""Tags between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from api.operations.tags import TagRemoval, TagWish
from models.cluster.table import Tag
from models.errors import Invalid


def read_tags(wire: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """By key, in the caller's order. Raises Invalid for a key that is given twice."""
    tags: dict[str, str] = {}
    for tag in wire:
        if tag["Key"] in tags:
            raise Invalid(message=f"Tags has the key '{tag['Key']}' twice.")
        tags[tag["Key"]] = tag["Value"]
    return tags


def read_add(members: Mapping[str, Any]) -> TagWish:
    return TagWish(arn=members["ResourceArn"], tags=read_tags(members["Tags"]))


def read_list(members: Mapping[str, Any]) -> str:
    """A resource has 50 tags at most and a page at least as many, so no token is ever issued.

    Raises:
        Invalid: there is a token, which cannot be ours.
    """
    if members.get("NextToken"):
        raise Invalid(message="NextToken is invalid: ListTags answers in one page.")
    arn: str = members["ResourceArn"]
    return arn


def read_remove(members: Mapping[str, Any]) -> TagRemoval:
    return TagRemoval(arn=members["ResourceArn"], keys=tuple(members["TagKeys"]))


def write_tags(tags: Sequence[Tag]) -> dict[str, Any]:
    return {"Tags": [{"Key": tag.key, "Value": tag.value} for tag in tags]}


def write_nothing(_result: None) -> dict[str, Any]:
    return {}
