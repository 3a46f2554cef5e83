"""The life of a job and of its processes."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class JobState(StrEnum):
    QUEUED = "queued"
    FORMING = "forming"
    TRAINING = "training"
    RESIZING = "resizing"
    RECOVERING = "recovering"
    EVICTING = "evicting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


_J = JobState

JOB = Machine(
    "Job",
    initial=_J.QUEUED,
    table={
        _J.QUEUED: {_J.FORMING: "nodes found", _J.FAILED: "can never run", _J.STOPPED: "stop requested"},
        # Processes start and rehearse; then the first generation is published and joined.
        _J.FORMING: {
            _J.TRAINING: "formed",
            _J.QUEUED: "nodes lost",
            _J.SUCCEEDED: "all processes ended well",
            _J.FAILED: "user code failed",
            _J.STOPPED: "stop requested",
        },
        _J.TRAINING: {
            _J.RESIZING: "resize decided",
            _J.RECOVERING: "member lost",
            _J.EVICTING: "eviction decided",
            _J.SUCCEEDED: "all steps done",
            _J.FAILED: "user code failed",
            _J.STOPPED: "stop requested",
        },
        # A generation of another size is published; its members change over to it.
        _J.RESIZING: {
            _J.TRAINING: "formed",
            _J.RECOVERING: "member lost",
            _J.SUCCEEDED: "all steps done",
            _J.FAILED: "user code failed",
            _J.STOPPED: "stop requested",
        },
        # A newer generation is published, or capacity for it is awaited. State survives in at least one process.
        _J.RECOVERING: {
            _J.TRAINING: "formed",
            _J.FORMING: "started afresh from a checkpoint",
            _J.EVICTING: "lost nodes did not come back in time",
            _J.SUCCEEDED: "all steps done",
            _J.FAILED: "user code failed or state lost",
            _J.STOPPED: "stop requested",
        },
        _J.EVICTING: {_J.QUEUED: "evicted", _J.STOPPED: "stop requested"},
        _J.SUCCEEDED: {},
        _J.FAILED: {},
        _J.STOPPED: {},
    },
)


class ProcessState(StrEnum):
    WANTED = "wanted"
    STARTED = "started"
    READY = "ready"
    FINISHED = "finished"
    EXITED = "exited"
    LOST = "lost"


_P = ProcessState

PROCESS = Machine(
    "Process",
    initial=_P.WANTED,
    table={
        _P.WANTED: {_P.STARTED: "started", _P.READY: "ready", _P.EXITED: "exited", _P.LOST: "given up"},
        _P.STARTED: {_P.READY: "ready", _P.EXITED: "exited", _P.LOST: "given up"},
        # Model built, a step rehearsed: it can join a generation at any time, and does so while it is a member.
        _P.READY: {_P.FINISHED: "all steps done", _P.EXITED: "exited", _P.LOST: "given up"},
        # A finished member still serves its state to a replacement that must finish.
        _P.FINISHED: {_P.READY: "called back", _P.EXITED: "exited", _P.LOST: "given up"},
        _P.EXITED: {},
        # Its node is lost, or it did not answer: whatever it still does no longer counts.
        _P.LOST: {},
    },
)

ALIVE = PROCESS.live
"""The states of a process that may still do something."""
ON_PEERS_WORD = "its node's stream has closed and its peers' collectives broke"
"""Why a process is given up on its peers' word: that counts against its node as well."""
ENDED = tuple(state for state in JOB.states if JOB.is_terminal(state))
"""The states in which a job holds no node."""
