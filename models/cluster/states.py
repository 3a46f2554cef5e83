"""The life of a cluster and of its instance groups."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class ClusterState(StrEnum):
    CREATING = "creating"
    IN_SERVICE = "in_service"
    UPDATING = "updating"
    SYSTEM_UPDATING = "system_updating"
    ROLLING_BACK = "rolling_back"
    FAILED = "failed"
    DELETING = "deleting"
    DELETED = "deleted"


_C = ClusterState

CLUSTER = Machine(
    "Cluster",
    initial=_C.CREATING,
    table={
        # Classic: until every group is at its target. Continuous: until the cluster itself can take nodes.
        _C.CREATING: {
            _C.IN_SERVICE: "created",
            _C.ROLLING_BACK: "creation failed",
            _C.FAILED: "creation failed for good",
            _C.DELETING: "delete requested",
        },
        _C.IN_SERVICE: {
            _C.UPDATING: "update requested",
            _C.SYSTEM_UPDATING: "software update requested",
            _C.DELETING: "delete requested",
        },
        _C.UPDATING: {
            _C.IN_SERVICE: "updated",
            _C.ROLLING_BACK: "update failed",
            _C.FAILED: "update failed for good",
            _C.DELETING: "delete requested",
        },
        _C.ROLLING_BACK: {_C.IN_SERVICE: "rolled back", _C.FAILED: "rolled back from creation", _C.DELETING: "delete requested"},
        _C.SYSTEM_UPDATING: {
            _C.IN_SERVICE: "software updated",
            _C.FAILED: "software update failed",
            _C.DELETING: "delete requested",
        },
        _C.FAILED: {_C.UPDATING: "update requested", _C.DELETING: "delete requested"},
        _C.DELETING: {_C.DELETED: "every node is gone", _C.FAILED: "deletion failed"},
        _C.DELETED: {},
    },
)


class GroupState(StrEnum):
    CREATING = "creating"
    IN_SERVICE = "in_service"
    UPDATING = "updating"
    SYSTEM_UPDATING = "system_updating"
    DEGRADED = "degraded"
    FAILED = "failed"
    DELETING = "deleting"
    GONE = "gone"


_G = GroupState

GROUP = Machine(
    "InstanceGroup",
    initial=_G.CREATING,
    table={
        _G.CREATING: {
            _G.IN_SERVICE: "at target",
            _G.UPDATING: "target changed",
            _G.FAILED: "provisioning failed",
            _G.DELETING: "delete requested",
        },
        _G.IN_SERVICE: {
            _G.UPDATING: "target changed",
            _G.SYSTEM_UPDATING: "software update",
            _G.DEGRADED: "below target",
            _G.DELETING: "delete requested",
        },
        _G.UPDATING: {
            _G.IN_SERVICE: "at target",
            _G.DEGRADED: "below target",
            _G.FAILED: "provisioning failed",
            _G.DELETING: "delete requested",
        },
        _G.SYSTEM_UPDATING: {
            _G.IN_SERVICE: "software updated",
            _G.DEGRADED: "below target",
            _G.FAILED: "software update failed",
            _G.DELETING: "delete requested",
        },
        # A node was lost; the target is unchanged and a replacement is on its way.
        _G.DEGRADED: {
            _G.IN_SERVICE: "at target",
            _G.UPDATING: "target changed",
            _G.SYSTEM_UPDATING: "software update",
            _G.FAILED: "provisioning failed",
            _G.DELETING: "delete requested",
        },
        _G.FAILED: {
            _G.UPDATING: "target changed",
            _G.SYSTEM_UPDATING: "software update",
            _G.IN_SERVICE: "rolled back",
            _G.DELETING: "delete requested",
        },
        _G.DELETING: {_G.GONE: "every node is gone"},
        _G.GONE: {},
    },
)
