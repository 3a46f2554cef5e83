"""Where SageMaker's operations are in REST: a method and a path each, in one table.

Names in braces are members of the operation's input, and come from the path as they are: an ARN has to be percent-encoded there. The other members are
the query of a GET or DELETE, else the body.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class RestRoute:
    """``revised`` names what an ETag tells the revision of: GET shows it, PATCH and DELETE take it as If-Match.

    ``suffix`` tells two paths of one operation apart. ``text`` says what the operation is for; what it does beyond that is in the table of operations.
    """

    operation: str
    method: str
    path: str
    text: str
    status: int = 200
    revised: str | None = None
    suffix: str = ""

    @property
    def id(self) -> str:
        return f"{self.operation}{self.suffix}"

    @property
    def in_path(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def has_body(self) -> bool:
        return self.method in {"POST", "PATCH"}


_CLUSTER: Final = "/v1/clusters/{ClusterName}"
_NODE: Final = f"{_CLUSTER}/nodes/{{NodeId}}"
_VOLUMES: Final = "/v1/clusters/{ClusterArn}/nodes/{NodeId}/volumes"
_SCHEDULER: Final = "/v1/scheduler-configs/{ClusterSchedulerConfigId}"
_QUOTA: Final = "/v1/compute-quotas/{ComputeQuotaId}"
_TAGS: Final = "/v1/tags/{ResourceArn}"

ROUTES: Final[tuple[RestRoute, ...]] = (
    RestRoute("CreateCluster", "POST", "/v1/clusters", "Ask for a cluster.", 201),
    RestRoute("ListClusters", "GET", "/v1/clusters", "Clusters, page by page."),
    RestRoute("DescribeCluster", "GET", _CLUSTER, "A cluster: what was asked for, and what there is.", revised="cluster"),
    RestRoute("UpdateCluster", "PATCH", _CLUSTER, "Change a cluster; what is left out stays.", 202, revised="cluster"),
    RestRoute("DeleteCluster", "DELETE", _CLUSTER, "Ask for a cluster's end.", 202, revised="cluster"),
    RestRoute("UpdateClusterSoftware", "POST", f"{_CLUSTER}/software-updates", "Update the software of a cluster's nodes.", 202),
    RestRoute("StartClusterHealthCheck", "POST", f"{_CLUSTER}/health-checks", "Check a cluster's nodes in depth.", 202),
    RestRoute("ListClusterNodes", "GET", f"{_CLUSTER}/nodes", "A cluster's nodes, page by page."),
    RestRoute("BatchAddClusterNodes", "POST", f"{_CLUSTER}/nodes/batch-add", "Add nodes to instance groups."),
    RestRoute("BatchDeleteClusterNodes", "POST", f"{_CLUSTER}/nodes/batch-delete", "Delete nodes, chosen by id."),
    RestRoute("BatchRebootClusterNodes", "POST", f"{_CLUSTER}/nodes/batch-reboot", "Reboot nodes, chosen by id."),
    RestRoute("BatchReplaceClusterNodes", "POST", f"{_CLUSTER}/nodes/batch-replace", "Replace nodes, chosen by id."),
    RestRoute("DescribeClusterNode", "GET", _NODE, "A node, by its instance's id."),
    RestRoute(
        "DescribeClusterNode",
        "GET",
        f"{_CLUSTER}/logical-nodes/{{NodeLogicalId}}",
        "A node, by the id that its successors keep.",
        suffix="ByLogicalId",
    ),
    RestRoute("MoveClusterNodes", "POST", "/v1/node-moves", "Move nodes to another cluster.", 202),
    RestRoute("AttachClusterNodeNetworkInterface", "POST", f"{_NODE}/network-interfaces", "Attach an interface to a node."),
    RestRoute("AttachClusterNodeVolume", "POST", _VOLUMES, "Attach a volume to a node.", 202),
    RestRoute("DetachClusterNodeVolume", "DELETE", f"{_VOLUMES}/{{VolumeId}}", "Detach a volume from a node.", 202),
    RestRoute("ListClusterEvents", "GET", f"{_CLUSTER}/events", "What happened to a cluster, page by page."),
    RestRoute("DescribeClusterEvent", "GET", f"{_CLUSTER}/events/{{EventId}}", "One event, with its details."),
    RestRoute("ListClusterOperations", "GET", f"{_CLUSTER}/operations", "What was asked of a cluster, page by page."),
    RestRoute("DescribeClusterOperation", "GET", f"{_CLUSTER}/operations/{{OperationId}}", "One operation, with its details."),
    RestRoute("CreateClusterSchedulerConfig", "POST", "/v1/scheduler-configs", "Make a scheduler configuration.", 201),
    RestRoute("ListClusterSchedulerConfigs", "GET", "/v1/scheduler-configs", "Scheduler configurations, page by page."),
    RestRoute("DescribeClusterSchedulerConfig", "GET", _SCHEDULER, "A scheduler configuration.", revised="scheduler-config"),
    RestRoute("UpdateClusterSchedulerConfig", "PATCH", _SCHEDULER, "Change one; a new version.", revised="scheduler-config"),
    RestRoute("DeleteClusterSchedulerConfig", "DELETE", _SCHEDULER, "Delete one.", 204, revised="scheduler-config"),
    RestRoute("CreateComputeQuota", "POST", "/v1/compute-quotas", "Give a team a share of a cluster.", 201),
    RestRoute("ListComputeQuotas", "GET", "/v1/compute-quotas", "Compute quotas, page by page."),
    RestRoute("DescribeComputeQuota", "GET", _QUOTA, "A compute quota.", revised="compute-quota"),
    RestRoute("UpdateComputeQuota", "PATCH", _QUOTA, "Change one; a new version.", revised="compute-quota"),
    RestRoute("DeleteComputeQuota", "DELETE", _QUOTA, "Delete one.", 204, revised="compute-quota"),
    RestRoute("ListTags", "GET", _TAGS, "The tags of whatever has an ARN."),
    RestRoute("AddTags", "POST", _TAGS, "Add tags, or overwrite the values of present ones."),
    RestRoute("DeleteTags", "DELETE", _TAGS, "Delete tags by their keys.", 204),
)
