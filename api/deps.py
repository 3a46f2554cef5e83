"""What a handler may ask for, as ``Annotated`` dependencies. ``Services`` is what the composition root puts together, once a process.

One request, one transaction: the session commits after the handler and before the answer leaves (``scope="function"``), so that what was
answered is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, cast

from fastapi import Depends
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from api import auth
from api.auth import Caller
from api.settings import Settings
from api.sigv4 import SignedRequest
from models.clock import Clock
from models.session import Sessions, unit_of_work

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a body. The largest legal CreateCluster, a hundred groups with fifty labels each, stays below 2 MiB."""


class TooLarge(Exception):
    """The body is longer than any request of this API can be."""


@dataclass(frozen=True)
class Services:
    """``sessions`` opens transactions; ``clock`` is the only source of time."""

    settings: Settings
    sessions: Sessions
    clock: Clock


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
        TooLarge: the body is longer than any that could be signed for us.
    """
    signed = signed_request(request, await read_body(request))
    is_bearer = auth.is_bearer(signed.headers.get("authorization", ""))
    return await run_in_threadpool(authenticate_token if is_bearer else authenticate_signature, services, signed)


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
    """In a transaction of its own, which is over before the request's begins. Raises SignatureError."""
    with services.sessions() as session:
        return auth.by_signature(session, request, master_key=services.settings.master_key, now=services.clock.now())


def authenticate_token(services: Services, request: SignedRequest) -> Caller:
    """Raises Unauthenticated."""
    with services.sessions() as session:
        return auth.by_token(session, request.headers.get("authorization", ""))


def signed_request(request: Request, body: bytes) -> SignedRequest:
    """The request as it came over the wire. Header lines of one name are joined by commas, as signing joins them."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return SignedRequest(
        method=request.method,
        path=request.scope.get("raw_path", b"/").partition(b"?")[0].decode("latin-1"),
        query=request.scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
        body=body,
    )


SessionDep = Annotated[Session, Depends(_session, scope="function")]
NowDep = Annotated[datetime, Depends(_now)]
CallerDep = Annotated[Caller, Depends(authenticated)]
