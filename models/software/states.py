"""The life of a software update of one instance group, as DescribeCluster shows it."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class UpdateState(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"


_U = UpdateState

UPDATE = Machine(
    "Software update",
    initial=_U.PENDING,
    table={
        _U.PENDING: {
            _U.IN_PROGRESS: "begun",
            _U.ROLLING_BACK: "an alarm rings, or another group failed",
            _U.FAILED: "the cluster is deleted",
        },
        _U.IN_PROGRESS: {
            _U.SUCCEEDED: "every node runs the new release, or was left out",
            _U.ROLLING_BACK: "a node or another group failed, or an alarm rings",
            _U.FAILED: "the cluster is deleted",
        },
        # A release belongs to a cluster: whatever an update has changed goes back when it fails anywhere.
        _U.SUCCEEDED: {_U.ROLLING_BACK: "another group failed, or an alarm rings while the release is watched"},
        _U.ROLLING_BACK: {_U.ROLLED_BACK: "every node runs the former release", _U.FAILED: "nodes fail on the former release, too"},
        _U.ROLLED_BACK: {},
        _U.FAILED: {},
    },
)
AT_WORK = (_U.PENDING, _U.IN_PROGRESS, _U.ROLLING_BACK)
"""The states in which something is still to be done for the group."""
