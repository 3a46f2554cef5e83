"""Clusters between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.aws.translate.groups import read_groups, write_group
from api.aws.translate.states import CLUSTER_STATUS, write_freshness
from api.aws.translate.tags import read_tags
from api.aws.translate.times import read_after, read_before
from api.operations.clusters import ClusterChange, ClusterListing, ClusterRow, ClusterView
from models.cluster.changes import ClusterSpec
from models.cluster.queries import ClusterFilter
from models.cluster.seen import SeenCluster
from models.cluster.states import ClusterState
from models.paging import Cut

SETTINGS = (
    "VpcConfig",
    "Orchestrator",
    "NodeRecovery",
    "NodeProvisioningMode",
    "ClusterRole",
    "TieredStorageConfig",
    "AutoScaling",
    "RestrictedInstanceGroupsConfig",
)
"""Members of the cluster as a whole; what was sent is what DescribeCluster shows."""
DEFAULT_PAGE = 100


def read_create(members: Mapping[str, Any]) -> ClusterSpec:
    """Raises Invalid for a tag that is given twice."""
    return ClusterSpec(
        name=members["ClusterName"],
        is_continuous=members.get("NodeProvisioningMode") == "Continuous",
        settings=_settings(members),
        groups=read_groups(members),
        tags=read_tags(members.get("Tags", ())),
    )


def read_update(members: Mapping[str, Any]) -> ClusterChange:
    return ClusterChange(
        cluster=members["ClusterName"],
        groups=read_groups(members),
        to_delete=tuple(members.get("InstanceGroupsToDelete", ())),
        settings=_settings(members),
    )


def read_name(members: Mapping[str, Any]) -> str:
    name: str = members["ClusterName"]
    return name


def read_listing(members: Mapping[str, Any], cursor: str | None) -> ClusterListing:
    return ClusterListing(
        wanted=ClusterFilter(
            created_after=read_after(members, "CreationTimeAfter"),
            created_before=read_before(members, "CreationTimeBefore"),
            name_contains=members.get("NameContains"),
        ),
        cut=read_cut(members, cursor),
        by_name=members.get("SortBy") == "NAME",
    )


def read_cut(members: Mapping[str, Any], cursor: str | None, *, default_order: str = "Ascending") -> Cut:
    return Cut(
        limit=members.get("MaxResults", DEFAULT_PAGE),
        is_descending=members.get("SortOrder", default_order) == "Descending",
        cursor=cursor,
    )


def write_arn(arn: str) -> dict[str, Any]:
    return {"ClusterArn": arn}


def write_description(view: ClusterView) -> dict[str, Any]:
    """``InstanceGroups`` is there even if all groups are restricted ones: the model requires it."""
    cluster = view.cluster
    plain = [group for group in view.groups if not group.group.is_restricted]
    restricted = [group for group in view.groups if group.group.is_restricted]
    return {
        "ClusterArn": cluster.arn,
        "ClusterName": cluster.name,
        "ClusterStatus": CLUSTER_STATUS[cluster.state],
        "CreationTime": cluster.created_at,
        "FailureMessage": cluster.failure_message,
        "InstanceGroups": [write_group(group, view.releases, is_continuous=cluster.is_continuous) for group in plain],
        "RestrictedInstanceGroups": [write_group(group, view.releases, is_continuous=cluster.is_continuous) for group in restricted]
        or None,
        **cluster.settings,
        "AutoScaling": _write_scaling(cluster),
        "RestrictedInstanceGroupsConfig": _write_shared(cluster),
    }


def write_listing(views: Sequence[ClusterRow]) -> dict[str, Any]:
    return {
        "ClusterSummaries": [
            {
                "ClusterArn": view.cluster.arn,
                "ClusterName": view.cluster.name,
                "CreationTime": view.cluster.created_at,
                "ClusterStatus": CLUSTER_STATUS[view.cluster.state],
                "ImageVersionStatus": write_freshness(view.freshness),
            }
            for view in views
        ]
    }


def _settings(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: members[name] for name in SETTINGS if name in members}


def _write_scaling(cluster: SeenCluster) -> dict[str, Any] | None:
    """The status is the setting's: whoever scales with it finds it in service as soon as the cluster takes nodes."""
    config = cluster.settings.get("AutoScaling")
    if config is None:
        return None
    status = {ClusterState.CREATING: "Creating", ClusterState.DELETING: "Deleting", ClusterState.FAILED: "Failed"}
    return {**config, "Status": status.get(cluster.state, "InService")}


def _write_shared(cluster: SeenCluster) -> dict[str, Any] | None:
    """As it is and as it is wished for: no file system is made that could lag behind the wish."""
    config = cluster.settings.get("RestrictedInstanceGroupsConfig")
    if config is None:
        return None
    shared = config["SharedEnvironmentConfig"]
    return {"SharedEnvironmentConfig": {f"{when}{name}": shared[name] for name in shared for when in ("Current", "Desired")}}
