"""Operations on several nodes at once."""

from __future__ import annotations

from typing import Final

from api.aws.table.kinds import Operation, Table, honoured
from api.aws.translate import batches as wire
from api.operations import additions, batches, moves

_NAMED: Final = "A node that is named twice, by either id, is refused with ValidationException."
_SELECTORS: Final = ("NodeIds", "NodeLogicalIds")

BATCHES: Table = {
    "BatchAddClusterNodes": Operation(
        wire.read_addition,
        additions.add,
        wire.write_additions,
        note=(
            "Continuous clusters only; at most 50 nodes. The logical ids that are answered are those of nodes that exist from then on. A group that "
            "is being created, updated or deleted, or has failed, gets none: InvalidInstanceGroupStatus."
        ),
        members={
            **honoured("ClusterName", "NodesToAdd", "NodesToAdd[].InstanceGroupName", "NodesToAdd[].IncrementTargetCountBy"),
            **honoured(
                "ClientToken",
                note="For eight hours: the same request is told of the same nodes as they are by then, NotFound for those deleted since; "
                "another request is refused.",
            ),
            **honoured(
                "NodesToAdd[].AvailabilityZones",
                note="There is one zone, the region's name and 'a'; a list without it is IncompatibleAvailabilityZones.",
            ),
            **honoured(
                "NodesToAdd[].InstanceTypes",
                note="Types of the group; the first of them is asked for. Any other is IncompatibleInstanceTypes.",
            ),
        },
    ),
    "BatchDeleteClusterNodes": Operation(
        wire.read_choice,
        batches.delete,
        wire.write_deletions,
        note=(
            "Lowers the groups' targets; jobs leave first. When nothing can be deleted the answer is a ValidationException with every reason. Slurm "
            "controllers are not deleted, and no group falls below its MinInstanceCount (InvalidNodeStatus). ConflictException unless the cluster is "
            f"in service. {_NAMED}"
        ),
        members=honoured("ClusterName", *_SELECTORS),
    ),
    "BatchRebootClusterNodes": Operation(
        wire.read_choice,
        batches.reboot,
        wire.write_restarts,
        note=(
            "Jobs leave first, for ten seconds at most; lifecycle scripts do not run again. Whatever NodeRecovery says. ConflictException unless the "
            "cluster is in service. "
            f"Answers 200 when every node fails. {_NAMED}"
        ),
        members={**honoured("ClusterName", "NodeIds"), **honoured("NodeLogicalIds", note="Continuous clusters only.")},
    ),
    "BatchReplaceClusterNodes": Operation(
        wire.read_choice,
        batches.replace,
        wire.write_restarts,
        note=(
            "Another instance in the same place: NodeLogicalId and TargetCount stay. Whatever NodeRecovery says; not for Slurm controllers. "
            "ConflictException unless the cluster is in service. "
            f"Answers 200 when every node fails. {_NAMED}"
        ),
        members={**honoured("ClusterName", "NodeIds"), **honoured("NodeLogicalIds", note="Continuous clusters only.")},
    ),
    "MoveClusterNodes": Operation(
        wire.read_move,
        moves.move,
        wire.write_moves,
        note=(
            "Both clusters Continuous, with Eks, and in service; both groups in service. Jobs leave first. The node keeps its ids and its address, "
            "starts from its new group's image and runs that group's lifecycle scripts. Refused as a whole when no node can be moved or the source "
            f"would fall below its MinInstanceCount. {_NAMED}"
        ),
        members={
            **honoured("SourceClusterArn", "SourceInstanceGroupName", "TargetClusterArn", "TargetInstanceGroupName", *_SELECTORS),
            **honoured("InstanceCount", note="Nodes without a job first, of these the newest. Refused when fewer can be moved."),
            **honoured("ClientToken", note="For eight hours: the same request is given its first answer; another one is refused."),
        },
    ),
}
