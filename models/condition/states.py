"""The life of a node's condition: something that is the matter with it, from the first sign to its end."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class FaultClass(StrEnum):
    """What a fault calls for, as its node's agent read it off its table. The words are those of the wire."""

    APPLICATION = "application"
    TRANSIENT = "transient"
    REBOOT = "reboot"
    REPLACE = "replace"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """Who says so."""

    AGENT = "agent"
    OPERATOR = "operator"
    CHECK = "check"


class Repair(StrEnum):
    """What is done about it."""

    NOTHING = "nothing"
    """It is told, and that is all: the node is as good as before."""
    PROCESS = "process"
    """The process that it struck is started anew; the node is as good as before."""
    LABEL = "label"
    """The node takes no new work for a while, and is watched."""
    REBOOT = "reboot"
    REPLACE = "replace"


class ConditionState(StrEnum):
    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    HELD = "held"
    REPAIRING = "repairing"
    RESOLVED = "resolved"
    WITHDRAWN = "withdrawn"


_C = ConditionState

CONDITION = Machine(
    "Condition",
    initial=_C.SUSPECTED,
    table={
        # One sign alone costs nobody anything.
        _C.SUSPECTED: {_C.CONFIRMED: "seen again, or it lasts", _C.WITHDRAWN: "seen no more"},
        _C.CONFIRMED: {
            _C.REPAIRING: "repair begun",
            _C.HELD: "nobody may repair it now",
            _C.RESOLVED: "nothing is to be repaired",
        },
        # Node recovery is off, or too many of the group have trouble at once. Labels and taints stay.
        _C.HELD: {_C.REPAIRING: "repair begun", _C.RESOLVED: "repaired by somebody else, or called off"},
        _C.REPAIRING: {_C.RESOLVED: "repaired, or called off", _C.HELD: "node recovery was switched off before it was too late"},
        _C.RESOLVED: {},
        _C.WITHDRAWN: {},
    },
)
OPEN = CONDITION.live
"""The states of a condition that is not over."""
REAL = (_C.CONFIRMED, _C.HELD, _C.REPAIRING)
"""Those in which the node wears the label, and its schedulability follows from it."""
