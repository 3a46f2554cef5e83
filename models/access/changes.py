"""Writes of credentials."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import or_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.access.secrets import seal
from models.access.states import KEY, KeyState, Kind, Role
from models.access.table import Credential
from models.ids import AccessKeyId, digest, new_access_key_id, new_secret, new_token, new_token_id
from models.move import advance
from models.session import hurry

BOOTSTRAP: Final = "bootstrap"
"""The name of the credentials that an installation is created with."""
USE_EVERY: Final = timedelta(minutes=1)
"""``last_used`` is no finer than this: a key that is used a thousand times a second must not write its row as often."""


@dataclass(frozen=True)
class Grant:
    """What a new credential allows, and to whom."""

    kind: Kind
    name: str
    role: Role
    team: str | None
    account_id: str
    created_by: str


def request_key(session: Session, key_id: str, secret: str, *, account_id: str, master_key: bytes, now: datetime) -> None:
    """Stores an access key of the installation. Again, by another process at this very moment too, it changes nothing but its secret."""
    sealed = seal(master_key, secret, bound_to=key_id)
    key = _first(AccessKeyId(key_id), Kind.ACCESS_KEY, account_id, now) | {"sealed_secret": sealed}
    statement = insert(Credential).values(key)
    session.execute(statement.on_conflict_do_update(index_elements=[Credential.id], set_={"sealed_secret": sealed}))


def request_token(session: Session, token: str, *, account_id: str, now: datetime) -> None:
    """Stores a bearer token of the installation; storing the same one again changes nothing."""
    kept = digest(token)
    row = _first(AccessKeyId(f"tok-{kept[:12]}"), Kind.TOKEN, account_id, now) | {"digest": kept}
    session.execute(insert(Credential).values(row).on_conflict_do_nothing())


def request_credential(session: Session, grant: Grant, *, master_key: bytes, now: datetime) -> tuple[Credential, str]:
    """A new credential, and the secret or token that nobody is told a second time."""
    is_token = grant.kind is Kind.TOKEN
    key_id, secret = (new_token_id(), new_token()) if is_token else (new_access_key_id(), new_secret())
    made = Credential(
        id=key_id,
        kind=grant.kind,
        name=grant.name,
        role=grant.role,
        team=grant.team,
        account_id=grant.account_id,
        sealed_secret=None if is_token else seal(master_key, secret, bound_to=key_id),
        digest=digest(secret) if is_token else None,
        state=KEY.initial,
        created_by=grant.created_by,
        created_at=now,
    )
    session.add(made)
    session.flush()
    return made, secret


def request_revocation(session: Session, credential: Credential, *, now: datetime) -> None:
    """Ends a locked credential; revoking it again changes nothing."""
    if credential.state is KeyState.REVOKED:
        return
    advance(KEY, credential, KeyState.REVOKED, now=now)
    credential.revoked_at = now
    session.flush()


def request_end(session: Session, credential: Credential, *, at: datetime) -> None:
    """A locked credential is valid no longer than until then."""
    credential.valid_until = at if credential.valid_until is None else min(at, credential.valid_until)
    session.flush()


def report_used(session: Session, credential: Credential, *, now: datetime) -> None:
    """Remembers that a credential was used, once a minute at most, however many processes see it used."""
    if credential.last_used is not None and credential.last_used > now - USE_EVERY:
        return
    hurry(session)
    is_due = or_(Credential.last_used.is_(None), Credential.last_used <= now - USE_EVERY)
    used = update(Credential).where(Credential.id == credential.id, is_due).values(last_used=now)
    session.execute(used.execution_options(synchronize_session=False))


def _first(key_id: AccessKeyId, kind: Kind, account_id: str, now: datetime) -> dict[str, Any]:
    return {
        "id": key_id,
        "kind": kind,
        "name": BOOTSTRAP,
        "role": Role.ADMIN,
        "account_id": account_id,
        "state": KEY.initial,
        "created_at": now,
    }
