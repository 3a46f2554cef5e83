"""Reads of faults."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.errors import NotFound
from models.fault.states import LIVE, FaultKind, FaultState
from models.fault.table import Fault
from models.paging import Cut, Page, page
from models.session import locked


def get(session: Session, fault_id: str, *, lock: bool = False) -> Fault:
    """Raises NotFound."""
    wanted = select(Fault).where(Fault.id == fault_id)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Fault", name=fault_id)
    return row


def of_node(session: Session, node_id: str) -> list[Fault]:
    """What the node's agent is to know of, oldest first."""
    wanted = select(Fault).where(Fault.node_id == node_id, Fault.state.in_(LIVE))
    return list(session.scalars(wanted.order_by(Fault.sequence)))


def is_store_out(session: Session) -> bool:
    """Whether every call to the object store is to fail now."""
    outage = select(Fault.id).where(Fault.kind == FaultKind.BUCKET_OUTAGE, Fault.state == FaultState.HOLDING)
    return session.scalars(outage.limit(1)).one_or_none() is not None


def outages_due(session: Session, *, now: datetime) -> list[Fault]:
    """Outages of the object store whose time is over; locked, those that nobody else has."""
    holding = select(Fault).where(
        Fault.kind == FaultKind.BUCKET_OUTAGE, Fault.state == FaultState.HOLDING, Fault.seconds.is_not(None)
    )
    found = session.scalars(holding.order_by(Fault.sequence).with_for_update(skip_locked=True))
    return [fault for fault in found if (fault.struck_at or fault.created_at) + timedelta(seconds=fault.seconds or 0.0) <= now]


def listed(session: Session, cut: Cut, *, job_id: str | None = None, live_only: bool = False) -> Page[Fault]:
    wanted = select(Fault)
    if job_id is not None:
        wanted = wanted.where(Fault.job_id == job_id)
    if live_only:
        wanted = wanted.where(Fault.state.in_(LIVE))
    return page(session, wanted, (Fault.sequence, Fault.id), lambda row: (row.sequence, row.id), cut)
