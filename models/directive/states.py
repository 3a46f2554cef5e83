"""The life of a directive: what a node was told to run for a job."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class DirectiveState(StrEnum):
    ISSUED = "issued"
    DELIVERED = "delivered"
    DONE = "done"
    REFUSED = "refused"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


_D = DirectiveState

DIRECTIVE = Machine(
    "Directive",
    initial=_D.ISSUED,
    table={
        _D.ISSUED: {
            _D.DELIVERED: "written to the stream",
            _D.SUPERSEDED: "newer one issued",
            _D.EXPIRED: "node gone",
            _D.DONE: "nothing left to do",
        },
        # Stays delivered while it is what the node should run; a reconnecting agent gets it again.
        _D.DELIVERED: {
            _D.DONE: "nothing left to do",
            _D.REFUSED: "agent refused",
            _D.EXPIRED: "node gone",
            _D.SUPERSEDED: "newer one issued",
        },
        _D.DONE: {},
        _D.REFUSED: {},
        _D.EXPIRED: {},
        _D.SUPERSEDED: {},
    },
)
CURRENT = DIRECTIVE.live
