"""The life of an injected fault."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class FaultKind(StrEnum):
    """``kill-rank``: SIGKILL. ``hang-rank``: the process is stopped for a while. ``kill-node``: everything on the node, its agent included.

    ``corrupt-shard``: a byte of one node's copy of a shard is changed in its memory. ``bucket-outage``: for a while every call to the object store
    fails, those of all nodes' memory tiers and those of the control plane; no agent strikes it.
    ``xid``: a line of a driver in the kernel log of simulated accelerators. ``spot-notice``: the provider's word that it takes the host back at a
    deadline, and ``spot-reclaim``: that it does, without a word. ``partition``: the agent does not reach the control plane for a while, and what
    runs on the node goes on. ``slow-node``: what trains on the node gets half of its time, for a while.
    """

    KILL_RANK = "kill-rank"
    HANG_RANK = "hang-rank"
    KILL_NODE = "kill-node"
    CORRUPT_SHARD = "corrupt-shard"
    BUCKET_OUTAGE = "bucket-outage"
    XID = "xid"
    SPOT_NOTICE = "spot-notice"
    SPOT_RECLAIM = "spot-reclaim"
    PARTITION = "partition"
    SLOW_NODE = "slow-node"


class FaultState(StrEnum):
    WANTED = "wanted"
    HOLDING = "holding"
    ENDING = "ending"
    STRUCK = "struck"
    MISSED = "missed"
    ENDED = "ended"


_F = FaultState

FAULT = Machine(
    "Fault",
    initial=_F.WANTED,
    table={
        # On its node's stream until the agent tells what came of it.
        _F.WANTED: {
            _F.STRUCK: "struck",
            _F.HOLDING: "struck, and lasts",
            _F.MISSED: "nothing left to strike",
            _F.ENDING: "clear requested",
            _F.ENDED: "node gone",
        },
        _F.HOLDING: {_F.ENDING: "clear requested", _F.ENDED: "its time is over", _F.MISSED: "nothing left to strike"},
        # The agent may strike before it hears of the clear, and says so then.
        _F.ENDING: {_F.ENDED: "cleared", _F.STRUCK: "struck before it was cleared", _F.MISSED: "nothing left to strike"},
        _F.STRUCK: {},
        _F.MISSED: {},
        _F.ENDED: {},
    },
)
LIVE = FAULT.live
