"""The life of what is attached to a node: a volume or a network interface."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class AttachmentKind(StrEnum):
    VOLUME = "volume"
    INTERFACE = "interface"


class AttachmentState(StrEnum):
    ATTACHING = "attaching"
    BUSY = "busy"
    ATTACHED = "attached"
    DETACHING = "detaching"
    DETACHED = "detached"


_A = AttachmentState

ATTACHMENT = Machine(
    "Attachment",
    initial=_A.ATTACHING,
    table={
        _A.ATTACHING: {
            _A.ATTACHED: "the provider has attached it",
            _A.BUSY: "a host that is not ours has it",
            _A.DETACHING: "detachment requested",
            _A.DETACHED: "refused, or its node is gone",
        },
        # Tried again until it is free.
        _A.BUSY: {
            _A.ATTACHED: "the provider has attached it",
            _A.DETACHING: "detachment requested",
            _A.DETACHED: "refused, or its node is gone",
        },
        _A.ATTACHED: {_A.DETACHING: "detachment requested", _A.DETACHED: "its node is gone"},
        _A.DETACHING: {_A.DETACHED: "the provider has detached it"},
        _A.DETACHED: {},
    },
)
