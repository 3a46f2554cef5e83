"""Operations that tell of operations."""

from __future__ import annotations

from api.aws.table.kinds import Listing, Operation, Table, honoured
from api.aws.table.parts import CREATED, ORDER, PAGE
from api.aws.translate import operations as wire
from api.operations import operations

OPERATIONS: Table = {
    "ListClusterOperations": Listing(
        wire.read_listing,
        operations.listed,
        lambda rows, _members: wire.write_listing(rows),
        note="Those of the last 14 days, newest first unless SortOrder says otherwise; of any kind of cluster.",
        members=honoured("ClusterName", "Status", "Type", *CREATED, *ORDER, *PAGE),
    ),
    "DescribeClusterOperation": Operation(
        wire.read_choice,
        operations.describe,
        wire.write_details,
        note="Of a scaling, the groups as they were and as they are wished for; of a health check, what was asked for.",
        members=honoured("ClusterName", "OperationId"),
        absent={
            "ScalingDetails[].Desired.CurrentCount": "What a group has now is in DescribeCluster; a wish has no current count."
        },
    ),
}
