"""Leases with fencing tokens: one worker at a time looks at a row, and a stale one cannot settle it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, func, null, or_, select, update
from sqlalchemy.orm import Session

from models.errors import StaleLease
from models.notify import nudge
from models.session import locked

Table = Any
"""A mapped class with the ``Leased`` columns and an ``id``."""

_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Lease:
    """The right to settle one row, until it expires or somebody takes a newer one."""

    kind: str
    row_id: str
    token: int
    attempts: int
    until: datetime


def take(session: Session, table: Table, row_id: str, *, owner: str, now: datetime, span: timedelta) -> Lease | None:
    """Takes the lease, or returns None if the row is gone or another worker holds it. Counts the attempt before the work.

    The row is parked until just after the lease's end: whoever wakes it meanwhile writes another time there, which ``settle`` sees.
    """
    until = now + span
    taken = session.execute(
        update(table)
        .where(table.id == row_id, or_(table.lease_until.is_(None), table.lease_until <= now))
        .values(
            fence=table.fence + 1, lease_owner=owner, lease_until=until, reconcile_at=_parked(until), attempts=table.attempts + 1
        )
        .returning(table.fence, table.attempts)
    ).one_or_none()
    return None if taken is None else Lease(table.KIND, row_id, taken.fence, taken.attempts, until)


def renew(session: Session, table: Table, lease: Lease, *, until: datetime) -> Lease | None:
    """Keeps the lease for longer, while its holder is at work; None if it has passed on."""
    stays = case((table.reconcile_at == _parked(lease.until), _parked(until)), else_=table.reconcile_at)
    renewed = session.execute(
        update(table)
        .where(table.id == lease.row_id, table.fence == lease.token)
        .values(lease_until=until, reconcile_at=stays)
        .returning(table.id)
    ).one_or_none()
    return None if renewed is None else replace(lease, until=until)


def settle(session: Session, table: Table, lease: Lease, *, again_at: datetime | None) -> None:
    """Gives the lease back after success. The row is looked at again at ``again_at``; at once if it was woken or moved meanwhile.

    Raises:
        StaleLease: another worker has taken the row since; the caller's transaction must not commit.
    """
    check(session, table, lease)
    row = session.execute(select(table).where(table.id == lease.row_id).execution_options(populate_existing=True)).scalar_one()
    woken = row.reconcile_at != _parked(lease.until)
    row.lease_owner = None
    row.lease_until = None
    row.attempts = 0
    if not woken:
        row.reconcile_at = again_at
    session.flush()
    if woken and row.reconcile_at is not None:
        nudge(session, lease.kind, lease.row_id)


def check(session: Session, table: Table, lease: Lease) -> None:
    """Locks the row for the rest of the transaction.

    Raises:
        StaleLease: the lease has passed on, or the row is gone.
    """
    fence = session.execute(locked(select(table.fence).where(table.id == lease.row_id))).scalar_one_or_none()
    if fence != lease.token:
        raise StaleLease(kind=lease.kind, name=lease.row_id, token=lease.token)


def give_back(session: Session, table: Table, lease: Lease, *, again_at: datetime) -> None:
    """Gives a lease back after a failure, keeping the count of attempts. Does nothing if the lease has passed on.

    A row that was woken meanwhile does not wait until ``again_at``; the next sweep finds it. It is not nudged: a row whose attempts fail
    and wake it would be tried without a pause.
    """
    reconcile_at = case(
        (table.reconcile_at.is_(None), null()),
        (table.reconcile_at == _parked(lease.until), again_at),
        else_=func.least(table.reconcile_at, again_at),
    )
    session.execute(
        update(table)
        .where(table.id == lease.row_id, table.fence == lease.token)
        .values(lease_owner=None, lease_until=None, reconcile_at=reconcile_at)
    )


def _parked(until: datetime) -> datetime:
    """Where ``reconcile_at`` stands while a lease runs. A time that no clock tells, lest a wake at the lease's very end go unseen."""
    return until + _MOMENT


def remind(session: Session, table: Table, row_id: str, *, now: datetime) -> bool:
    """Something is new while another worker holds the lease: it will see so when it settles, and the row is looked at once more.

    Without this, a bare notification would be lost whenever it meets a lease. False if nobody holds the lease any more.
    """
    told = update(table).where(table.id == row_id, table.lease_until > now).values(reconcile_at=now).returning(table.id)
    return session.execute(told).one_or_none() is not None


def due(session: Session, table: Table, *, now: datetime, again_at: datetime, limit: int) -> list[str]:
    """Rows whose time has come, and which no worker holds. They are due again at ``again_at``, should their messages be lost.

    Two sweeps at once share the rows instead of waiting for each other.
    """
    is_free = or_(table.lease_until.is_(None), table.lease_until <= now)
    ripe = select(table.id).where(table.reconcile_at <= now, is_free).order_by(table.reconcile_at).limit(limit)
    ids = list(session.scalars(ripe.with_for_update(skip_locked=True, key_share=True)))
    if ids:
        session.execute(update(table).where(table.id.in_(ids)).values(reconcile_at=again_at))
    return ids
