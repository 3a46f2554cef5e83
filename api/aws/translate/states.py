"""Wire enums are projections of the domain's states: total tables, by test."""

from __future__ import annotations

from typing import Final, cast

from botocore.model import StringShape

from api.aws.schema import sagemaker
from models.cluster.states import ClusterState, GroupState
from models.health.changes import EXAMINED, UNFIT
from models.image.states import Freshness
from models.node.states import NodeState
from models.operation.states import OperationState

CLUSTER_STATUS: Final[dict[ClusterState, str | None]] = {
    ClusterState.CREATING: "Creating",
    ClusterState.IN_SERVICE: "InService",
    ClusterState.UPDATING: "Updating",
    ClusterState.SYSTEM_UPDATING: "SystemUpdating",
    ClusterState.ROLLING_BACK: "RollingBack",
    ClusterState.FAILED: "Failed",
    ClusterState.DELETING: "Deleting",
    ClusterState.DELETED: None,  # never shown: the door answers ResourceNotFound
}

GROUP_STATUS: Final[dict[GroupState, str | None]] = {
    GroupState.CREATING: "Creating",
    GroupState.IN_SERVICE: "InService",
    GroupState.UPDATING: "Updating",
    GroupState.SYSTEM_UPDATING: "SystemUpdating",
    GroupState.DEGRADED: "Degraded",
    GroupState.FAILED: "Failed",
    GroupState.DELETING: "Deleting",
    GroupState.GONE: None,  # never shown: a group that is gone leaves the description
}


def _if_known(word: str, instead: str, shape: str = "ClusterInstanceStatus") -> str:
    """Clients of an older model would not know the word."""
    return word if word in cast("StringShape", sagemaker().shape_for(shape)).enum else instead


NODE_STATUS: Final[dict[NodeState, str]] = {
    NodeState.REQUESTED: "Pending",
    NodeState.BOOTING: "Pending",
    NodeState.CHECKING: "Pending",  # its lifecycle script runs
    NodeState.READY: "Running",
    NodeState.SUSPECT: "Running",  # unreachable is not dead
    NodeState.DRAINING: "Running",
    NodeState.REBOOTING: "Pending",
    NodeState.UPDATING: "SystemUpdating",
    NodeState.DETACHING: _if_known("DetachInProgress", "Running"),
    NodeState.ATTACHING: _if_known("AttachInProgress", "Pending"),
    NodeState.RELEASING: "ShuttingDown",
    NodeState.GONE: "NotFound",
}

HELD: Final[dict[str, str]] = {EXAMINED: "DeepHealthCheckInProgress", UNFIT: "Failure"}
"""What a running node shows instead while it is kept from work, by who keeps it; others who do are not shown."""

OPERATION_STATUS: Final[dict[OperationState, str]] = {
    OperationState.IN_PROGRESS: "InProgress",
    OperationState.SUPERSEDED: "Superseded",
    OperationState.DONE: "Done",
}

FAILURE: Final = "Failure"
"""What shows instead while hosts come to nothing at a node's place: its latest one goes, or the next one waits for its pause to end."""
FAILING: Final = (NodeState.RELEASING, NodeState.REQUESTED)

SERVING: Final = (GroupState.IN_SERVICE, GroupState.DEGRADED)
SCALING: Final = (GroupState.CREATING, GroupState.UPDATING)
"""Groups on their way to a new target; a continuous cluster shows this as an active operation."""

FRESHNESS: Final[dict[Freshness, str]] = {
    freshness: _if_known(freshness, Freshness.UPDATE_AVAILABLE, "ClusterImageVersionStatus") for freshness in Freshness
}


def write_freshness(freshness: Freshness | None) -> str | None:
    return None if freshness is None else FRESHNESS[freshness]
