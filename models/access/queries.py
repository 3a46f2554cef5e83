"""Reads of credentials."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.access.states import KeyState, Kind, Role
from models.access.table import Credential
from models.errors import NotFound
from models.ids import digest
from models.paging import Cut, Page, page
from models.session import locked


def active_key(session: Session, key_id: str, *, now: datetime) -> Credential | None:
    """The access key of this id, if it may be used."""
    found = session.get(Credential, key_id)
    return found if found is not None and found.kind is Kind.ACCESS_KEY and is_active(found, now=now) else None


def active_token(session: Session, token: str, *, now: datetime) -> Credential | None:
    """The token's row, if it may be used."""
    found = session.scalars(select(Credential).where(Credential.digest == digest(token))).one_or_none()
    return found if found is not None and is_active(found, now=now) else None


def is_active(credential: Credential, *, now: datetime) -> bool:
    """Neither revoked, nor rotated away longer ago than the old one was to live on."""
    is_over = credential.valid_until is not None and credential.valid_until <= now
    return credential.state is KeyState.ACTIVE and not is_over


def get(session: Session, key_id: str, *, lock: bool = False) -> Credential:
    """Raises NotFound."""
    wanted = select(Credential).where(Credential.id == key_id)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Key", name=key_id)
    return row


def listed(session: Session, cut: Cut, *, active_at: datetime | None = None) -> Page[Credential]:
    """Credentials by creation; only those that may be used at ``active_at``, if it is given."""
    wanted = select(Credential)
    if active_at is not None:
        is_over = Credential.valid_until.is_not(None) & (Credential.valid_until <= active_at)
        wanted = wanted.where(Credential.state == KeyState.ACTIVE, ~is_over)
    return page(session, wanted, (Credential.created_at, Credential.id), lambda row: (row.created_at, row.id), cut)


def lasting_admins(session: Session) -> list[Credential]:
    """The credentials that may give any other, and do so without an end. Locked, so that two calls cannot take the last two of them."""
    wanted = select(Credential).where(
        Credential.role == Role.ADMIN,
        Credential.team.is_(None),
        Credential.state == KeyState.ACTIVE,
        Credential.valid_until.is_(None),
    )
    return list(session.scalars(locked(wanted.order_by(Credential.id))))
