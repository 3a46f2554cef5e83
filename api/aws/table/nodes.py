"""Operations of nodes."""

from __future__ import annotations

from api.aws.table.kinds import Listing, Operation, Table, honoured
from api.aws.table.parts import CREATED, ORDER, PAGE
from api.aws.translate import nodes as wire
from api.operations import nodes

_NOTHING_TO_SHOW = {
    "UltraServerInfo": "There are no UltraServers here.",
    "PrivateDnsHostname": "Nodes have addresses and no names.",
}

NODES: Table = {
    "ListClusterNodes": Listing(
        wire.read_listing,
        nodes.listed,
        wire.write_listing,
        note=(
            "Oldest first unless SortOrder says otherwise; SortBy NAME orders by instance group. A node without an instance shows only with "
            "IncludeNodeLogicalIds: with an empty InstanceId, and as LaunchTime the time at which it was asked for."
        ),
        members=honoured("ClusterName", *CREATED, *PAGE, *ORDER, "InstanceGroupNameContains", "IncludeNodeLogicalIds"),
        absent={f"ClusterNodeSummaries[].{name}": why for name, why in _NOTHING_TO_SHOW.items()},
    ),
    "DescribeClusterNode": Operation(
        wire.read_choice,
        nodes.describe,
        wire.write_details,
        note="By exactly one of NodeId and NodeLogicalId. LastSoftwareUpdateTime is there after the node's first update of its software.",
        members=honoured("ClusterName", "NodeId", "NodeLogicalId"),
        absent={
            **{f"NodeDetails.{name}": why for name, why in _NOTHING_TO_SHOW.items()},
            "NodeDetails.PrivatePrimaryIpv6": "Nodes have IPv4 addresses.",
            "NodeDetails.Placement.AvailabilityZoneId": "The zone has a name only.",
        },
    ),
}
