"""The life of an alarm: named by software updates, set by whoever watches."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class AlarmState(StrEnum):
    OK = "ok"
    ALARM = "alarm"


_A = AlarmState

ALARM = Machine(
    "Alarm",
    initial=_A.OK,
    table={
        # An alarm that nobody has ever set is as good as one that is OK.
        _A.OK: {_A.ALARM: "it rings"},
        _A.ALARM: {_A.OK: "it is quiet again"},
    },
)
