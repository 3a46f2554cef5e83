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
            _N.REBOOTING: "reboot requested",
            _N.UPDATING: "software update",
        },
        # Unreachable is not dead: work goes on until the loss is confirmed or the patience runs out.
        _N.SUSPECT: {
            _N.READY: "heard again",
            _N.DRAINING: "drain requested",
            _N.REBOOTING: "reboot requested",
            _N.RELEASING: "loss confirmed",
        },
        _N.REBOOTING: {_N.CHECKING: "agent registered", _N.RELEASING: "did not come back"},
        _N.UPDATING: {_N.CHECKING: "agent registered", _N.RELEASING: "did not come back"},
        _N.DRAINING: {_N.RELEASING: "drained", _N.REBOOTING: "drained for a reboot", _N.READY: "drain withdrawn"},
        # Released until the provider says NotFound.
        _N.RELEASING: {_N.GONE: "provider knows it no longer"},
        _N.GONE: {},
    },
)


class HostWord(StrEnum):
    """What a provider says of a host: the third witness of a loss, beside the agent's silence and its peers' broken collectives."""

    ALIVE = "alive"
    DEAD = "dead"
    MISSING = "missing"


COUNTED = (_N.READY, _N.SUSPECT, _N.DRAINING, _N.REBOOTING, _N.UPDATING)
"""The states in which a node counts as current in its group."""
WANTED = (_N.REQUESTED, _N.BOOTING, _N.CHECKING, _N.READY, _N.SUSPECT, _N.REBOOTING, _N.UPDATING)
"""The states in which a node fills a place of its group: it serves, or is on its way to."""
