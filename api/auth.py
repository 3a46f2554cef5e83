"""Who is calling: an AWS signature or a bearer token becomes a ``Caller``. Secrets are opened here, used, and never logged."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from cryptography.exceptions import InvalidTag
from sqlalchemy.orm import Session

from api.settings import Settings
from api.sigv4 import SignedRequest, verify
from models.access import changes, queries, secrets
from models.access.states import Role
from models.errors import Unauthenticated

_BEARER = "bearer "

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """An authenticated principal. ``name`` is for logs: an access key id, or ``token``.

    ``team`` bounds what it sees to its team's own and what is shared; None sees everything. ``source`` is the address it called from.
    """

    account_id: str
    name: str
    role: Role = Role.ADMIN
    team: str | None = None
    source: str | None = None


def by_signature(session: Session, request: SignedRequest, *, master_key: bytes, now: datetime) -> Caller:
    """Verifies an AWS signature against the stored access keys.

    Raises:
        SignatureError: with the code and the message that the client is to read.
    """

    def secret_of(key_id: str) -> str | None:
        key = queries.active_key(session, key_id)
        if key is None:
            return None
        try:
            return secrets.unseal(master_key, key.sealed_secret, bound_to=key_id)
        except InvalidTag:
            # Told to the operator, not to the caller: for the caller, a key whose secret we cannot open is no key.
            log.exception("access key %s was sealed under another master key; store it again under this one", key_id)
            return None

    scope = verify(request, now=now, secret_of=secret_of)
    key = queries.active_key(session, scope.access_key_id)
    if key is None:
        raise Unauthenticated
    return Caller(account_id=key.account_id, name=key.id)


def by_token(session: Session, authorization: str) -> Caller:
    """Raises Unauthenticated unless the header is ``Bearer`` and a token that is known and not revoked."""
    token = authorization[len(_BEARER) :].strip() if is_bearer(authorization) else ""
    known = queries.active_token(session, token) if token else None
    if known is None:
        raise Unauthenticated
    return Caller(account_id=known.account_id, name="token")


def is_bearer(authorization: str) -> bool:
    return authorization.lower().startswith(_BEARER)


def store_bootstrap(session: Session, settings: Settings, *, now: datetime) -> None:
    """Stores the credentials that the installation was created with. At every start again: it changes nothing then."""
    first = settings.bootstrap
    if first.access_key_id and first.secret_access_key:
        changes.request_key(
            session,
            first.access_key_id,
            first.secret_access_key,
            account_id=settings.account_id,
            master_key=settings.master_key,
            now=now,
        )
    if first.token:
        changes.request_token(session, first.token, account_id=settings.account_id, now=now)
