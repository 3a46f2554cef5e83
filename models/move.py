"""The only place that assigns ``.state``.

Rows are locked in one order everywhere, so that no two transactions can wait for each other:
cluster, group, node, attachment, job, process, generation, directive, fault, export, checkpoint (by id), its copies, its namespace, memory tier. Scheduler configurations and compute quotas come last, and never without their cluster.
Software updates, health checks and spot notices come before all of these: their own reconcilers alone lock them. Operations are leaves, locked last. Credentials are locked by id, and with nothing else.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar

from sqlalchemy.orm import Session

from models.base import Timed
from models.machine import Machine
from models.notify import nudge

S = TypeVar("S", bound=StrEnum)


class Part(Protocol):
    """A row with a state."""

    state: Any


class Looked(Protocol):
    """A row with a reconciler, which ``KIND`` names."""

    KIND: ClassVar[str]
    id: Any
    reconcile_at: Any


class Whole(Part, Looked, Protocol):
    """A row with a state and a reconciler."""

    version: Any
    state_since: Any


def advance(machine: Machine[S], row: Part, new: S, *, now: datetime) -> str:
    """Moves a row that has no reconciler of its own. Returns the event's name.

    Raises:
        IllegalMove: the machine has no such edge. Nothing is changed.
    """
    event = machine.event(row.state, new, name=str(getattr(row, "name", None) or getattr(row, "id", "")))
    row.state = new
    if isinstance(row, Timed):
        row.state_since = now
    return event


def move(session: Session, machine: Machine[S], row: Whole, new: S, *, now: datetime) -> str:
    """Moves a row, which the caller has locked, and asks for its reconciliation. Returns the event's name.

    Raises:
        IllegalMove: the machine has no such edge. Nothing is changed.
    """
    event = advance(machine, row, new, now=now)
    row.version += 1
    if machine.is_terminal(new):
        row.reconcile_at = None
        session.flush()
    else:
        wake(session, row, now=now)
    return event


def wake(session: Session, row: Looked, *, now: datetime) -> None:
    """Asks for a reconciliation: something that the row's plan looks at is new."""
    row.reconcile_at = now
    session.flush()
    nudge(session, row.KIND, row.id)
