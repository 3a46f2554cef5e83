"""Writes of credentials."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.access.secrets import seal
from models.access.states import KEY
from models.access.table import AccessKey, ApiToken
from models.ids import AccessKeyId, digest


def request_key(session: Session, key_id: str, secret: str, *, account_id: str, master_key: bytes, now: datetime) -> None:
    """Stores an access key; storing the same one again, by another process at this very moment too, changes nothing but its secret."""
    sealed = seal(master_key, secret, bound_to=key_id)
    key = {"id": AccessKeyId(key_id), "sealed_secret": sealed, "account_id": account_id, "state": KEY.initial, "created_at": now}
    session.execute(
        insert(AccessKey).values(key).on_conflict_do_update(index_elements=[AccessKey.id], set_={"sealed_secret": sealed})
    )


def request_token(session: Session, token: str, *, account_id: str, now: datetime) -> None:
    """Stores a bearer token; storing the same one again changes nothing."""
    row = {"digest": digest(token), "account_id": account_id, "state": KEY.initial, "created_at": now}
    session.execute(insert(ApiToken).values(row).on_conflict_do_nothing())
