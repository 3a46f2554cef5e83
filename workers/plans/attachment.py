"""What to do at the provider for one attachment. Pure: same snapshot, same actions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from models.volume.states import AttachmentState
from workers.plans.decision import Decision

ASKED_EVERY = timedelta(seconds=5)
"""A volume that another host has is asked for again."""


@dataclass(frozen=True)
class AttachmentSeen:
    state: AttachmentState
    node_is_gone: bool = False


@dataclass(frozen=True)
class Attach:
    why: str


@dataclass(frozen=True)
class Detach:
    why: str


@dataclass(frozen=True)
class Forget:
    """Nothing is to be asked of the provider any more."""

    why: str


Action = Attach | Detach | Forget


def plan(seen: AttachmentSeen, _now: datetime) -> Decision[Action]:
    if seen.state is AttachmentState.DETACHED:
        return Decision()
    if seen.node_is_gone:
        return Decision((Forget("Its node is gone."),))
    if seen.state in (AttachmentState.ATTACHING, AttachmentState.BUSY):
        return Decision((Attach("An attachment was requested."),), ASKED_EVERY)
    if seen.state is AttachmentState.DETACHING:
        return Decision((Detach("A detachment was requested."),), ASKED_EVERY)
    return Decision()
