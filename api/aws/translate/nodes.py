"""Nodes between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.aws.translate.clusters import read_cut
from api.aws.translate.groups import write_kubernetes
from api.aws.translate.software import write_node_software
from api.aws.translate.states import FAILING, FAILURE, HELD, NODE_STATUS, write_freshness
from api.aws.translate.times import read_after, read_before
from api.operations.nodes import NodeChoice, NodeListing, NodeRow, NodeView
from models.errors import Invalid
from models.node.queries import NodeFilter
from models.node.states import NodeState
from models.node.table import Node

AS_GROUP_SENT = ("LifeCycleConfig", "OverrideVpcConfig", "ThreadsPerCore", "InstanceStorageConfigs", "NetworkInterface")
"""Members of a node's details that its group's specification has in the same shape."""


def read_choice(members: Mapping[str, Any]) -> NodeChoice:
    """Raises Invalid unless exactly one of NodeId and NodeLogicalId is given."""
    if ("NodeId" in members) == ("NodeLogicalId" in members):
        raise Invalid(message="Specify exactly one of NodeId and NodeLogicalId.")
    return NodeChoice(members["ClusterName"], members.get("NodeId"), members.get("NodeLogicalId"))


def read_listing(members: Mapping[str, Any], cursor: str | None) -> NodeListing:
    """Nodes without an instance are shown to those who ask for logical ids; others could not name them."""
    return NodeListing(
        cluster=members["ClusterName"],
        wanted=NodeFilter(
            created_after=read_after(members, "CreationTimeAfter"),
            created_before=read_before(members, "CreationTimeBefore"),
            group_contains=members.get("InstanceGroupNameContains"),
            has_instance=not members.get("IncludeNodeLogicalIds", False),
        ),
        cut=read_cut(members, cursor),
        by_name=members.get("SortBy") == "NAME",
    )


def write_listing(rows: Sequence[NodeRow], members: Mapping[str, Any]) -> dict[str, Any]:
    with_logical_ids = members.get("IncludeNodeLogicalIds", False)
    return {
        "ClusterNodeSummaries": [
            {
                "InstanceGroupName": row.node.group_name,
                "InstanceId": row.node.instance_id or "",
                "NodeLogicalId": row.node.logical_id if with_logical_ids else None,
                "InstanceType": row.node.instance_type,
                "LaunchTime": row.node.launched_at or row.node.created_at,
                "LastSoftwareUpdateTime": row.node.software_at,
                "InstanceStatus": _write_status(row.node),
                "CurrentImageReleaseVersion": row.node.image,
                "ImageVersionStatus": write_freshness(row.freshness),
            }
            for row in rows
        ]
    }


def write_details(view: NodeView) -> dict[str, Any]:
    node, spec = view.node, view.group.spec
    return {
        "NodeDetails": {
            **{name: spec[name] for name in AS_GROUP_SENT if name in spec},
            "InstanceGroupName": node.group_name,
            "InstanceId": node.instance_id,
            "NodeLogicalId": node.logical_id,
            "InstanceStatus": _write_status(node),
            "InstanceType": node.instance_type,
            "LaunchTime": node.launched_at or node.created_at,
            "PrivatePrimaryIp": node.address,
            "Placement": {"AvailabilityZone": view.zone},
            "KubernetesConfig": _write_worn(node, spec.get("KubernetesConfig")),
            "CapacityType": next(iter(spec.get("CapacityRequirements", ())), None),
            **write_node_software(node, view.group.image_wanted, view.releases),
        }
    }


def status_of(node: Node) -> str:
    """The word of a node's state, or of what keeps it from work, or of hosts that come to nothing at its place."""
    if node.state in FAILING and node.facts.get("failures") and (node.state is NodeState.REQUESTED or node.lost_because):
        return FAILURE
    status = NODE_STATUS[node.state]
    return HELD.get(node.held_for or "", status) if status == "Running" else status


def _write_worn(node: Node, declared: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the node carries, and what its group declares. One that has only been asked for carries nothing yet, and is to get that."""
    if not node.labels:
        return write_kubernetes(declared)
    wished = {f"Desired{member}": value for member, value in (declared or {}).items()}
    return {"CurrentLabels": node.labels, "CurrentTaints": node.taints, **wished}


def _write_status(node: Node) -> dict[str, Any]:
    return {"Status": status_of(node), "Message": node.message}
