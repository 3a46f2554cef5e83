"""The life of a cluster operation, as ListClusterOperations shows it."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class OperationState(StrEnum):
    IN_PROGRESS = "in_progress"
    SUPERSEDED = "superseded"
    DONE = "done"


_O = OperationState

OPERATION = Machine(
    "Operation",
    initial=_O.IN_PROGRESS,
    table={
        _O.IN_PROGRESS: {_O.DONE: "all groups at target", _O.SUPERSEDED: "a newer operation of the cluster"},
        _O.SUPERSEDED: {},
        _O.DONE: {},
    },
)
