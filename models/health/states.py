"""The kinds of deep health checks, and the life of one node's examination."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class CheckKind(StrEnum):
    """By HyperPod's words."""

    STRESS = "InstanceStress"
    CONNECTIVITY = "InstanceConnectivity"
    TRAINING = "MultiNodeTrainingValidation"


class CheckState(StrEnum):
    WAITING = "waiting"
    ASKED = "asked"
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


_C = CheckState

CHECK = Machine(
    "Node check",
    initial=_C.WAITING,
    table={
        # Running work is not disturbed: the node is asked when it has none, and skipped if that takes too long.
        _C.WAITING: {_C.ASKED: "the node has no work", _C.SKIPPED: "still busy, or not in service"},
        _C.ASKED: {
            _C.PASSED: "every check passed",
            _C.FAILED: "a check failed, or no answer came",
            _C.SKIPPED: "the node went, or could run none of the checks",
        },
        _C.PASSED: {},
        _C.FAILED: {},
        _C.SKIPPED: {},
    },
)
