"""Reads of credentials."""

from __future__ import annotations

from sqlalchemy.orm import Session

from models.access.states import KeyState
from models.access.table import AccessKey, ApiToken
from models.ids import digest


def active_key(session: Session, key_id: str) -> AccessKey | None:
    key = session.get(AccessKey, key_id)
    return key if key is not None and key.state is KeyState.ACTIVE else None


def active_token(session: Session, token: str) -> ApiToken | None:
    row = session.get(ApiToken, digest(token))
    return row if row is not None and row.state is KeyState.ACTIVE else None
