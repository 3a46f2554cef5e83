"""The life of a node: one launched host, from the wish for it to the proof that it is gone."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class NodeState(StrEnum):
    REQUESTED = "requested"
    BOOTING = "booting"
    CHECKING = "checking"
    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"
    REBOOTING = "rebooting"
    UPDATING = "updating"
    DETACHING = "detaching"
    ATTACHING = "attaching"
    RELEASING = "releasing"
    GONE = "gone"


_N = NodeState

NODE = Machine(
    "Node",
    initial=_N.REQUESTED,
    table={
        # The row comes first, the launch after it: a crash in between leaves a claim that the provider can be asked for.
        _N.REQUESTED: {_N.BOOTING: "launched", _N.RELEASING: "no longer wanted", _N.GONE: "no longer wanted, never launched"},
        _N.BOOTING: {_N.CHECKING: "agent registered", _N.RELEASING: "boot failed or no longer wanted"},
        # The lifecycle script and, where asked for, deep health checks run here.
        _N.CHECKING: {_N.READY: "checks passed", _N.RELEASING: "checks failed or no longer wanted"},
        _N.READY: {
            _N.SUSPECT: "silent or stream closed",
            _N.DRAINING: "drain requested",
            _N.DETACHING: "move requested",
        },
        # Unreachable is not dead: work goes on until the loss is confirmed or the patience runs out.
        _N.SUSPECT: {
            _N.READY: "heard again",
            _N.DRAINING: "drain requested",
            _N.RELEASING: "loss confirmed",
        },
        _N.REBOOTING: {_N.CHECKING: "agent registered", _N.RELEASING: "did not come back"},
        _N.UPDATING: {_N.CHECKING: "agent registered", _N.RELEASING: "did not come back"},
        _N.DRAINING: {
            _N.RELEASING: "drained",
            _N.REBOOTING: "drained for a reboot",
            _N.UPDATING: "drained for new software",
            _N.READY: "drain withdrawn",
        },
        # Drained in its old cluster; from ATTACHING on its row belongs to the new one, whose software it gets.
        _N.DETACHING: {_N.ATTACHING: "drained for a move", _N.READY: "move withdrawn", _N.RELEASING: "no longer wanted"},
        _N.ATTACHING: {_N.CHECKING: "agent registered", _N.RELEASING: "did not come back"},
        # Released until the provider says NotFound.
        _N.RELEASING: {_N.GONE: "provider knows it no longer"},
        _N.GONE: {},
    },
)


ON_SUSPICION = "lost_on_suspicion"
"""The fact of a node that was given up without its provider's word."""
STARTED_ANEW = "started_anew"
"""The fact of a node that keeps when its provider was to start its host anew the last time."""
GAVE_WAY = "gave_way"
"""The fact of a node that was let go because another one has its place, too: of that place it says nothing any more."""


class HostWord(StrEnum):
    """What a provider says of a host: the third witness of a loss, beside the agent's silence and its peers' broken collectives."""

    ALIVE = "alive"
    DEAD = "dead"
    MISSING = "missing"


class CapacityType(StrEnum):
    """How a node's host is paid for. Immutable for its group."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    """Cheaper, and taken back by its provider with little notice or none."""


class Schedulability(StrEnum):
    """Whether the node takes new work, in HyperPod's words: the label ``sagemaker.amazonaws.com/node-health-status``."""

    SCHEDULABLE = "Schedulable"
    UNSCHEDULABLE = "Unschedulable"
    PENDING_REBOOT = "UnschedulablePendingReboot"
    PENDING_REPLACEMENT = "UnschedulablePendingReplacement"


class Restart(StrEnum):
    """How a host is started anew. Its instance id, its place and its address stay."""

    REBOOT = "reboot"
    """With what is on its disk; lifecycle scripts do not run again."""
    REIMAGE = "reimage"
    """From an image; lifecycle scripts run again."""


COUNTED = (_N.READY, _N.SUSPECT, _N.DRAINING, _N.REBOOTING, _N.UPDATING, _N.DETACHING)
"""The states in which a node counts as current in its group. One that starts anew goes on counting while its scripts run again."""
WANTED = (
    _N.REQUESTED,
    _N.BOOTING,
    _N.CHECKING,
    _N.READY,
    _N.SUSPECT,
    _N.DRAINING,  # and wanted: for a restart
    _N.REBOOTING,
    _N.UPDATING,
    _N.DETACHING,
    _N.ATTACHING,
)
"""The states in which a wanted node fills a place of its group: it serves, or is on its way to."""
SERVING = (_N.READY, _N.SUSPECT)
"""The states from which a node can be drained."""
RESTARTING = (_N.REBOOTING, _N.UPDATING, _N.ATTACHING)
"""The states in which the provider starts the host anew, and its agent is waited for."""
