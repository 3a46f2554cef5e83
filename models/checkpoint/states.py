"""The lives of a saved step, of a copy of one of its shards, and of an export."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class StepState(StrEnum):
    KEPT = "kept"
    DROPPING = "dropping"
    DROPPED = "dropped"


_S = StepState

STEP = Machine(
    "Checkpoint",
    initial=_S.KEPT,
    table={
        # Where it can be had from, if anywhere, is said by its copies and by ``durable_at``.
        _S.KEPT: {_S.DROPPING: "deletion requested, or no longer kept"},
        # Manifest first, then its shards, in the object store; nodes are told with their plans.
        _S.DROPPING: {_S.DROPPED: "gone from the object store", _S.KEPT: "saved again"},
        # A drain that was under way may commit it once more.
        _S.DROPPED: {_S.DROPPING: "found in the object store again", _S.KEPT: "saved again"},
    },
)


class CopyState(StrEnum):
    SEALED = "sealed"
    DROPPED = "dropped"
    CORRUPT = "corrupt"
    LOST = "lost"


_C = CopyState

COPY = Machine(
    "Copy",
    initial=_C.SEALED,
    table={
        _C.SEALED: {_C.DROPPED: "given up by its node", _C.CORRUPT: "checksum did not match", _C.LOST: "node lost or started anew"},
        # A node may be given the same shard again: by a peer, or by training that went back.
        _C.DROPPED: {_C.SEALED: "copied again", _C.CORRUPT: "checksum did not match", _C.LOST: "node lost or started anew"},
        _C.CORRUPT: {_C.SEALED: "copied again", _C.DROPPED: "given up by its node", _C.LOST: "node lost or started anew"},
        _C.LOST: {_C.SEALED: "copied again", _C.DROPPED: "given up by its node", _C.CORRUPT: "checksum did not match"},
    },
)


class ExportState(StrEnum):
    WANTED = "wanted"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class ExportFormat(StrEnum):
    """``dcp``: a folder that torch.distributed.checkpoint reads. ``safetensors``: whole tensors, in files of that format."""

    DCP = "dcp"
    SAFETENSORS = "safetensors"


_E = ExportState

EXPORT = Machine(
    "Export",
    initial=_E.WANTED,
    table={
        # Until its step is in the object store, which nodes are told to see to.
        _E.WANTED: {_E.RUNNING: "its step is durable", _E.FAILED: "its step is gone"},
        # A worker that dies at it leaves it running: the next one begins anew, and writes the same files.
        _E.RUNNING: {_E.DONE: "written", _E.FAILED: "cannot be written"},
        _E.DONE: {},
        _E.FAILED: {},
    },
)
