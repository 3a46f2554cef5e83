"""The life of an image release, and what a node's release says about the node."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class ReleaseState(StrEnum):
    AVAILABLE = "available"
    END_OF_LIFE = "end_of_life"


_R = ReleaseState

RELEASE = Machine(
    "ImageRelease",
    initial=_R.AVAILABLE,
    table={
        # Nodes that run it go on; nothing new starts from it.
        _R.AVAILABLE: {_R.END_OF_LIFE: "deprecated"},
        _R.END_OF_LIFE: {_R.AVAILABLE: "registered again"},
    },
)


class Freshness(StrEnum):
    """How a release stands beside the others: HyperPod's ``ClusterImageVersionStatus``, the worst last."""

    UP_TO_DATE = "UpToDate"
    UPDATE_AVAILABLE = "UpdateAvailable"
    SECURITY_UPDATE_REQUIRED = "SecurityUpdateRequired"
    END_OF_LIFE = "EndOfLife"
