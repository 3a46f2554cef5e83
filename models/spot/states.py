"""The life of a provider's word that it takes a node, or may take it."""

from __future__ import annotations

from enum import StrEnum

from models.machine import Machine


class NoticeKind(StrEnum):
    INTERRUPTION = "interruption"
    """The host is taken at the deadline."""
    REBALANCE = "rebalance"
    """It is more likely than others to be taken soon. A warning: nothing is certain, and there is no deadline."""


class NoticeState(StrEnum):
    ANNOUNCED = "announced"
    EVACUATING = "evacuating"
    WITHDRAWN = "withdrawn"
    EVACUATED = "evacuated"
    LOST = "lost"


_N = NoticeState

NOTICE = Machine(
    "SpotNotice",
    initial=_N.ANNOUNCED,
    table={
        # A recommendation stays here, unless a policy has its nodes left.
        _N.ANNOUNCED: {
            _N.EVACUATING: "what runs there was told to leave",
            _N.WITHDRAWN: "taken back, or overtaken by another end",
            _N.LOST: "taken before anything had left",
        },
        _N.EVACUATING: {
            _N.EVACUATED: "nothing was left on it",
            _N.LOST: "taken with work on it",
            _N.WITHDRAWN: "taken back, or overtaken by another end",
        },
        _N.WITHDRAWN: {},
        _N.EVACUATED: {},
        _N.LOST: {},
    },
)
OPEN = NOTICE.live
