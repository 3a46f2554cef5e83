"""Clusters between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.aws.translate import refuse
from api.aws.translate.states import CLUSTER_STATUS, GROUP_STATUS, SCALING
from api.aws.translate.tags import read_tags
from api.aws.translate.times import read_after, read_before
from api.operations.clusters import ClusterChange, ClusterListing, ClusterView, GroupView
from models.cluster.changes import ClusterSpec, GroupSpec
from models.cluster.queries import ClusterFilter
from models.cluster.table import Cluster
from models.paging import Cut

SETTINGS = ("VpcConfig", "Orchestrator", "NodeRecovery", "NodeProvisioningMode", "ClusterRole", "TieredStorageConfig")
"""Members of the cluster as a whole; what was sent is what DescribeCluster shows."""
AS_SENT = (
    "InstanceGroupName",
    "InstanceType",
    "LifeCycleConfig",
    "ExecutionRole",
    "ThreadsPerCore",
    "InstanceStorageConfigs",
    "OverrideVpcConfig",
    "SlurmConfig",
    "CapacityRequirements",
    "NetworkInterface",
)
"""Members of a group that its details show under the name and in the shape in which its specification has them."""
DEFAULT_PAGE = 100


def read_create(members: Mapping[str, Any]) -> ClusterSpec:
    """Raises Unsupported or Invalid for what cannot be honoured."""
    refuse.check_cluster(members)
    return ClusterSpec(
        name=members["ClusterName"],
        is_continuous=members.get("NodeProvisioningMode") == "Continuous",
        settings=_settings(members),
        groups=_groups(members),
        tags=read_tags(members.get("Tags", ())),
    )


def read_update(members: Mapping[str, Any]) -> ClusterChange:
    """Raises Unsupported or Invalid for what cannot be honoured."""
    refuse.check_cluster(members)
    return ClusterChange(
        cluster=members["ClusterName"],
        groups=_groups(members),
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
    cluster = view.cluster
    return {
        "ClusterArn": cluster.arn,
        "ClusterName": cluster.name,
        "ClusterStatus": CLUSTER_STATUS[cluster.state],
        "CreationTime": cluster.created_at,
        "FailureMessage": cluster.failure_message,
        "InstanceGroups": [_write_group(group, is_continuous=cluster.is_continuous) for group in view.groups],
        **cluster.settings,
    }


def write_listing(clusters: Sequence[Cluster]) -> dict[str, Any]:
    return {
        "ClusterSummaries": [
            {
                "ClusterArn": cluster.arn,
                "ClusterName": cluster.name,
                "CreationTime": cluster.created_at,
                "ClusterStatus": CLUSTER_STATUS[cluster.state],
            }
            for cluster in clusters
        ]
    }


def write_kubernetes(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Labels and taints, as they are and as they are wished for: nothing delays them here, so both are the same."""
    if config is None:
        return None
    return {f"{when}{member}": value for member, value in config.items() for when in ("Current", "Desired")}


def _settings(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: members[name] for name in SETTINGS if name in members}


def _groups(members: Mapping[str, Any]) -> tuple[GroupSpec, ...]:
    return tuple(
        GroupSpec(
            name=group["InstanceGroupName"],
            instance_type=group["InstanceType"],
            count=group["InstanceCount"],
            min_count=group.get("MinInstanceCount", 0),
            spec=group,
        )
        for group in members.get("InstanceGroups", ())
    )


def _write_group(view: GroupView, *, is_continuous: bool) -> dict[str, Any]:
    group, spec = view.group, view.group.spec
    is_scaling = is_continuous and group.state in SCALING
    return {
        **{name: spec[name] for name in AS_SENT if name in spec},
        "CurrentCount": view.current_count,
        "TargetCount": group.target_count,
        "MinCount": group.min_count if "MinInstanceCount" in spec else None,
        "Status": GROUP_STATUS[group.state],
        "KubernetesConfig": write_kubernetes(spec.get("KubernetesConfig")),
        "CurrentImageId": spec.get("ImageId"),
        "DesiredImageId": spec.get("ImageId"),
        "ActiveOperations": {"Scaling": 1} if is_scaling else None,
    }
