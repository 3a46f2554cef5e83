"""What to do about one export of a checkpoint. Pure: same snapshot, same actions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from models.checkpoint.states import EXPORT, ExportState
from workers.plans.decision import Decision

_LOOK = timedelta(seconds=2)
_PATIENCE = timedelta(minutes=30)
"""How long a step may take to become durable for an export: longer than an outage of the store that anybody waits out."""
TRIES = 3


@dataclass(frozen=True)
class ExportSeen:
    """``is_kept``: its step has not been dropped. ``is_durable``: its step is in the object store, from where it is read."""

    state: ExportState
    asked_at: datetime
    is_kept: bool = True
    is_durable: bool = False
    is_store_out: bool = False


@dataclass(frozen=True)
class Begin:
    """Its step is there: it is to be written."""


@dataclass(frozen=True)
class Look:
    """How far its program is. One that has vanished, with the machine that it ran on, is begun again."""


@dataclass(frozen=True)
class Fail:
    why: str


Action = Begin | Look | Fail


def plan(seen: ExportSeen, now: datetime) -> Decision[Action]:
    """What to do about one export."""
    if EXPORT.is_terminal(seen.state):
        return Decision()
    if seen.state is ExportState.RUNNING:
        return Decision((Look(),), _LOOK)
    if not seen.is_kept:
        return Decision((Fail("its step has been dropped"),))
    if seen.is_durable and not seen.is_store_out:
        return Decision((Begin(),), _LOOK)
    if now - seen.asked_at >= _PATIENCE:
        return Decision((Fail(f"its step has not become durable within {_PATIENCE.total_seconds() / 60:.0f} minutes"),))
    return Decision((), _LOOK)
