"""The kinds of a cluster operation, and its life as ListClusterOperations shows it."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class OperationKind(StrEnum):
    """What was asked of a cluster. The first two are those that HyperPod's API knows of, by its own words; the rest is told by events only."""

    SCALING = "Scaling"
    HEALTH_CHECK = "DeepHealthCheck"
    DELETION = "Deletion"
    SOFTWARE_UPDATE = "SoftwareUpdate"
    REBOOT = "Reboot"
    REPLACEMENT = "Replacement"
    MOVE = "Move"


LISTED = (OperationKind.SCALING, OperationKind.HEALTH_CHECK)
"""What ListClusterOperations has a word for."""
OF_CLUSTER = (OperationKind.SCALING, OperationKind.DELETION, OperationKind.SOFTWARE_UPDATE)
"""What the cluster and its groups as a whole are in the middle of; the other kinds are about single nodes."""
OF_NODES = (OperationKind.REBOOT, OperationKind.REPLACEMENT, OperationKind.MOVE)
"""Done when none of the nodes that it touched is in the middle of it any more."""
SUPERSEDES = {
    OperationKind.SCALING: (OperationKind.SCALING,),
    OperationKind.DELETION: tuple(OperationKind),
}
"""Which open operations an operation of a kind makes void; those of other kinds leave each other alone."""


class OperationState(StrEnum):
    IN_PROGRESS = "in_progress"
    SUPERSEDED = "superseded"
    DONE = "done"


_O = OperationState

OPERATION = Machine(
    "Operation",
    initial=_O.IN_PROGRESS,
    table={
        _O.IN_PROGRESS: {
            _O.DONE: "all that was asked for is reached, or was given up",
            _O.SUPERSEDED: "a newer operation of the cluster",
        },
        _O.SUPERSEDED: {},
        _O.DONE: {},
    },
)
