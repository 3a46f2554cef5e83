"""The life of an injected fault."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class FaultKind(StrEnum):
    """``kill-rank``: SIGKILL. ``hang-rank``: the process is stopped for a while. ``kill-node``: everything on the node, its agent included.

    ``corrupt-shard``: a byte of one node's copy of a shard is changed in its memory. ``bucket-outage``: for a while every call to the object store
    fails, those of all nodes' memory tiers and those of the control plane; no agent strikes it.
    """

    KILL_RANK = "kill-rank"
    HANG_RANK = "hang-rank"
    KILL_NODE = "kill-node"
    CORRUPT_SHARD = "corrupt-shard"
    BUCKET_OUTAGE = "bucket-outage"


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
