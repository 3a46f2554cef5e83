"""Operations of nodes."""

from __future__ import annotations

from api.aws.table.kinds import Listing, Operation, Table, honoured
from api.aws.table.parts import CREATED, ORDER, PAGE
from api.aws.translate import nodes as wire
from api.operations import nodes

NODES: Table = {
    "ListClusterNodes": Listing(
        wire.read_listing,
        nodes.listed,
        wire.write_listing,
        note="SortBy NAME orders by instance group. A node without an instance shows only with IncludeNodeLogicalIds, with an empty InstanceId.",
        members=honoured("ClusterName", *CREATED, *PAGE, *ORDER, "InstanceGroupNameContains", "IncludeNodeLogicalIds"),
    ),
    "DescribeClusterNode": Operation(
        wire.read_choice, nodes.describe, wire.write_details, members=honoured("ClusterName", "NodeId", "NodeLogicalId")
    ),
}
