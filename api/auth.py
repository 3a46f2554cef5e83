"""Who is calling, and what he may: an AWS signature or a bearer token becomes a ``Caller``. Secrets are opened here, used, and never logged."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidTag
from sqlalchemy.orm import Session

from api.settings import Settings
from api.sigv4 import SignatureError, SignedRequest, verify
from models.access import changes, queries, secrets
from models.access.states import Role
from models.access.table import Credential
from models.errors import Forbidden, Unauthenticated

_BEARER = "bearer "
_READS: Final = ("Describe", "List", "Get", "Search")
_FOR_ADMINS: Final = frozenset(
    {"CreateKey", "ListKeys", "RotateKey", "RevokeKey", "ListAuditEvents", "RegisterImageRelease", "DeprecateImageRelease"}
)

_TO_KEYS: Final = frozenset({"RotateKey", "RevokeKey"})
FRESH_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """An authenticated principal. ``name`` is what people call its credential, ``key_id`` the credential's id.

    ``team`` bounds what it sees to its team's own and what is shared; None sees everything. ``source`` is the address it called from.
    """

    account_id: str
    name: str
    role: Role = Role.ADMIN
    team: str | None = None
    source: str | None = None
    key_id: str = ""

    @property
    def arn(self) -> str:
        return f"arn:aws:iam::{self.account_id}:user/{self.name}"


def need_of(operation: str) -> Role:
    """The role that an operation takes, of either service, by its name: whoever looks is a viewer, whoever changes an operator."""
    if operation in _FOR_ADMINS:
        return Role.ADMIN
    return Role.VIEWER if operation.startswith(_READS) else Role.OPERATOR


def is_mutating(operation: str) -> bool:
    return not operation.startswith(_READS)


def ends_keys(operation: str) -> bool:
    """Whether the operation may take something from a key that somebody holds."""
    return operation in _TO_KEYS


def permit(caller: Caller, service: str, operation: str) -> None:
    """Raises Forbidden: the caller's role does not cover the operation. ``service`` is ``sagemaker`` or ``everstep``."""
    need = need_of(operation)
    if not caller.role.covers(need):
        raise refusal(caller, service, operation, f"Its role is {caller.role}; the operation needs {need}.")


def refusal(caller: Caller, service: str, operation: str, why: str) -> Forbidden:
    """In the words that AWS's clients know."""
    return Forbidden(message=f"User: {caller.arn} is not authorized to perform: {service}:{operation}. {why}")


@dataclass(frozen=True)
class _Held:
    caller: Caller
    secret: str = field(repr=False)
    valid_until: datetime | None
    read_at_s: float

    def is_good(self, now: datetime) -> bool:
        is_over = self.valid_until is not None and self.valid_until <= now
        return not is_over and time.monotonic() - self.read_at_s <= FRESH_S


@dataclass
class Keyring:
    """Access keys that this process has read and opened within the last second, so that a busy key is not read for each of its calls.

    What is done to a key by another process is therefore obeyed after ``FRESH_S`` at the latest; what is done by this one, at once.
    """

    _held: dict[str, _Held] = field(default_factory=dict, repr=False)
    _forgotten_at_s: float = 0.0

    def admit(self, request: SignedRequest, *, now: datetime) -> Caller | None:
        """Who has signed the request, if it is a key that is held and the signature is its; in all other cases the database is to be asked."""
        used: list[_Held] = []

        def secret_of(key_id: str) -> str | None:
            held = self._held.get(key_id)
            if held is None or not held.is_good(now):
                return None
            used.append(held)
            return held.secret

        try:
            verify(request, now=now, secret_of=secret_of)
        except SignatureError:
            return None
        caller = used[0].caller
        return caller if caller.source == request.source else replace(caller, source=request.source)

    def hold(self, caller: Caller, secret: str, *, valid_until: datetime | None, read_at_s: float) -> None:
        """``read_at_s`` is from before the row was read: what happens to it since then counts from there."""
        self._held[caller.key_id] = _Held(caller, secret, valid_until, read_at_s)
        if read_at_s <= self._forgotten_at_s:  # looked at only now, or a key that is forgotten meanwhile would stay
            self._held.pop(caller.key_id, None)

    def forget(self) -> None:
        """Something has been done to keys, and committed."""
        self._forgotten_at_s = time.monotonic()
        self._held.clear()


def by_signature(
    session: Session, request: SignedRequest, *, master_key: bytes, now: datetime, keyring: Keyring | None = None
) -> Caller:
    """Verifies an AWS signature against the stored access keys. One read of the database, and a write once a minute.

    Raises:
        SignatureError: with the code and the message that the client is to read.
    """
    found: list[Credential] = []
    opened: list[str] = []
    began_s = time.monotonic()

    def secret_of(key_id: str) -> str | None:
        key = queries.active_key(session, key_id, now=now)
        if key is None or key.sealed_secret is None:
            return None
        found.append(key)
        try:
            opened.append(secrets.unseal(master_key, key.sealed_secret, bound_to=key_id))
        except InvalidTag:
            # Told to the operator, not to the caller: for the caller, a key whose secret we cannot open is no key.
            log.exception("access key %s was sealed under another master key; store it again under this one", key_id)
            return None
        return opened[0]

    verify(request, now=now, secret_of=secret_of)
    if not found:
        raise Unauthenticated
    caller = _admit(session, found[0], request.source, now)
    if keyring is not None:
        keyring.hold(caller, opened[0], valid_until=found[0].valid_until, read_at_s=began_s)
    return caller


def by_token(session: Session, authorization: str, *, now: datetime, source: str | None = None) -> Caller:
    """Raises Unauthenticated unless the header is ``Bearer`` and a token that is known and not revoked."""
    token = authorization[len(_BEARER) :].strip() if is_bearer(authorization) else ""
    known = queries.active_token(session, token, now=now) if token else None
    if known is None:
        raise Unauthenticated
    return _admit(session, known, source, now)


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


def _admit(session: Session, key: Credential, source: str | None, now: datetime) -> Caller:
    changes.report_used(session, key, now=now)
    return Caller(account_id=key.account_id, name=key.name, role=key.role, team=key.team, source=source, key_id=key.id)
