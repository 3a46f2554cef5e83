"""What a handler may ask for, as ``Annotated`` dependencies. ``Services`` is what the composition root puts together, once a process.

One request, one transaction: the session commits after the handler and before the answer leaves (``scope="function"``), so that what was
answered is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, cast

from fastapi import Depends
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from api import auth
from api.auth import Caller, Keyring
from api.limits import Meter
from api.operations import audit
from api.operations.audit import Call
from api.operations.work import Limits, Work
from api.settings import Settings
from api.sigv4 import SignedRequest
from models.clock import Clock
from models.errors import Forbidden
from models.session import Sessions, look, unit_of_work

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a body. The largest legal CreateCluster, a hundred groups with fifty labels each, stays below 2 MiB."""


_LONGEST_ADDRESS: Final = 64

log = logging.getLogger(__name__)


class TooLarge(Exception):
    """The body is longer than any request of this API can be."""


@dataclass(frozen=True)
class Services:
    """``sessions`` opens transactions; ``clock`` is the only source of time; ``meter`` counts what each key asks.

    ``readers``, where they are given, open sessions without a transaction, for calls that only look.
    """

    settings: Settings
    sessions: Sessions
    clock: Clock
    meter: Meter = field(default_factory=lambda: Meter(0, 0))
    readers: Sessions | None = None
    keyring: Keyring = field(default_factory=Keyring)

    def reading(self) -> Sessions:
        return self.readers or self.sessions


def services_of(request: Request) -> Services:
    return cast("Services", request.app.state.services)


ServicesDep = Annotated[Services, Depends(services_of)]


def _session(services: ServicesDep) -> Iterator[Session]:
    with unit_of_work(services.sessions) as session:
        yield session


def _now(services: ServicesDep) -> datetime:
    return services.clock.now()


async def authenticated(request: Request, services: ServicesDep) -> Caller:
    """Bearer token or AWS signature. As a dependency of a router it comes before everything that its handlers ask for.

    Raises:
        Unauthenticated, SignatureError: nobody that we know.
        Throttled: a key that has called too often.
        TooLarge: the body is longer than any that could be signed for us.
    """
    signed = signed_request(request, await read_body(request))
    is_bearer = auth.is_bearer(signed.headers.get("authorization", ""))
    caller = await run_in_threadpool(authenticate_token if is_bearer else authenticate_signature, services, signed)
    request.state.requests_left = services.meter.left(caller.key_id)
    return caller


async def read_body(request: Request) -> bytes:
    """Raises TooLarge without reading on. Whoever reads the request's body afterwards gets the same bytes."""
    chunks, length = [], 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > MOST_BYTES:
            message = f"The request body is longer than {MOST_BYTES} bytes."
            raise TooLarge(message)
        chunks.append(chunk)
    body = b"".join(chunks)
    request._body = body  # noqa: SLF001  (where Starlette keeps what request.body() has read)
    return body


def authenticate_signature(services: Services, request: SignedRequest) -> Caller:
    """In a transaction of its own, which is over before the request's begins, unless the key is held. Raises SignatureError, Throttled."""
    now = services.clock.now()
    caller = services.keyring.admit(request, now=now)
    if caller is None:
        with unit_of_work(services.sessions) as session:
            caller = auth.by_signature(session, request, master_key=services.settings.master_key, now=now, keyring=services.keyring)
    services.meter.count(caller.key_id, now)
    return caller


def authenticate_token(services: Services, request: SignedRequest) -> Caller:
    """Raises Unauthenticated, Throttled."""
    now = services.clock.now()
    with unit_of_work(services.sessions) as session:
        caller = auth.by_token(session, request.headers.get("authorization", ""), now=now, source=request.source)
    services.meter.count(caller.key_id, now)
    return caller


@contextmanager
def work_of(services: Services, caller: Caller, call: Call) -> Iterator[Work]:
    """One call of an operation: permission, its transaction, and its entry in the audit log, committed together at the end of the block.

    What the block raises takes all of it back; a call that would have changed something is entered then by itself, with the error's name.

    Raises:
        Forbidden: the caller's role does not cover the operation, or its team what the operation would change.
    """
    now = services.clock.now()
    try:
        auth.permit(caller, call.service, call.operation)
        begun = unit_of_work(services.sessions) if auth.is_mutating(call.operation) else look(services.reading())
        with _worded(caller, call), begun as session:
            settings = services.settings
            limits = Limits(settings.most_instances, settings.most_instances_of_cluster, settings.export_to)
            yield Work(session, now, settings.region, caller, settings.master_key, limits)
            audit.record_call(session, caller, call, outcome=audit.DONE, now=now)
        if auth.ends_keys(call.operation):
            services.keyring.forget()
    except Exception as error:
        _enter_refused(services, caller, call, error, now)
        raise


@contextmanager
def _worded(caller: Caller, call: Call) -> Iterator[None]:
    """Whatever forbids it, says who must not do what."""
    try:
        yield
    except Forbidden as error:
        raise auth.refusal(caller, call.service, call.operation, str(error)) from error


def _enter_refused(services: Services, caller: Caller, call: Call, error: Exception, now: datetime) -> None:
    """An audit log that cannot be written, because the database is away, does not hide what was wrong in the first place."""
    if not auth.is_mutating(call.operation):
        return
    try:
        with unit_of_work(services.sessions) as session:
            audit.record_call(session, caller, call, outcome=type(error).__name__, now=now)
    except SQLAlchemyError:
        log.warning(
            "%s of %s by %s is not in the audit log: the database does not answer", call.request_id, call.operation, caller.name
        )


def signed_request(request: Request, body: bytes) -> SignedRequest:
    """The request as it came over the wire. Header lines of one name are joined by commas, as signing joins them."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return SignedRequest(
        method=request.method,
        path=request.scope.get("raw_path", b"/").partition(b"?")[0].decode("latin-1"),
        query=request.scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
        body=body,
        source=source_of(request),
    )


def source_of(request: Request) -> str | None:
    """The address that a request came from. Proxies that the settings trust are looked through, from the nearest on."""
    source = request.client.host if request.client else None
    trusted = services_of(request).settings.trusted_proxies
    if source in trusted:
        before = [hop.strip() for line in request.headers.getlist("x-forwarded-for") for hop in line.split(",")]
        while source in trusted and before:
            source = before.pop()
    return source[:_LONGEST_ADDRESS] if source else None


SessionDep = Annotated[Session, Depends(_session, scope="function")]
NowDep = Annotated[datetime, Depends(_now)]
CallerDep = Annotated[Caller, Depends(authenticated)]
