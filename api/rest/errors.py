"""What is wrong, for REST callers: RFC 9457 problem documents. One table, total by test."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api import sigv4
from api.aws.body import Unreadable
from api.aws.validate import MOST_TOLD, Violated
from api.deps import TooLarge
from api.limits import Throttled
from api.rest.conditions import PreconditionFailed, Unmodified, tag
from api.rest.envelope import HEADER as REQUEST_ID
from api.rest.envelope import request_id_of
from api.rest.follow import TooManyFollowers
from models import errors as domain

CONTENT_TYPE: Final = "application/problem+json"

log = logging.getLogger(__name__)

STATUSES: dict[type[Exception], HTTPStatus] = {
    domain.DomainError: HTTPStatus.BAD_REQUEST,
    domain.NotFound: HTTPStatus.NOT_FOUND,
    domain.AlreadyExists: HTTPStatus.CONFLICT,
    domain.Taken: HTTPStatus.CONFLICT,
    domain.NamespaceTaken: HTTPStatus.CONFLICT,
    domain.Kept: HTTPStatus.CONFLICT,
    domain.Outdated: HTTPStatus.CONFLICT,
    domain.InTransition: HTTPStatus.CONFLICT,
    domain.Leaving: HTTPStatus.CONFLICT,
    domain.InUse: HTTPStatus.CONFLICT,
    domain.IllegalMove: HTTPStatus.CONFLICT,
    domain.Immutable: HTTPStatus.UNPROCESSABLE_ENTITY,
    domain.Invalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    domain.Unsupported: HTTPStatus.UNPROCESSABLE_ENTITY,
    domain.LimitExceeded: HTTPStatus.CONFLICT,
    domain.Unauthenticated: HTTPStatus.UNAUTHORIZED,
    domain.Forbidden: HTTPStatus.FORBIDDEN,
    domain.StaleLease: HTTPStatus.SERVICE_UNAVAILABLE,
    Throttled: HTTPStatus.TOO_MANY_REQUESTS,
    sigv4.SignatureError: HTTPStatus.UNAUTHORIZED,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Unreadable: HTTPStatus.BAD_REQUEST,
    Violated: HTTPStatus.UNPROCESSABLE_ENTITY,
    PreconditionFailed: HTTPStatus.PRECONDITION_FAILED,
    TooManyFollowers: HTTPStatus.SERVICE_UNAVAILABLE,
    OperationalError: HTTPStatus.SERVICE_UNAVAILABLE,
    InterfaceError: HTTPStatus.SERVICE_UNAVAILABLE,
    PoolExhausted: HTTPStatus.SERVICE_UNAVAILABLE,
}
_KEPT_QUIET: Final = (OperationalError, InterfaceError, PoolExhausted)
"""Their messages hold addresses and statements: for the log only."""


@dataclass(frozen=True)
class Problem:
    """``code`` is stable and for programs, ``detail`` is for people. ``facts`` are further members."""

    status: HTTPStatus
    code: str
    detail: str
    facts: dict[str, Any]


def install(app: FastAPI) -> None:
    """Answers every error of this application's REST routes with a problem document."""
    for kind in STATUSES:
        app.add_exception_handler(kind, _refuse)
    app.add_exception_handler(Violated, _refuse_members)
    app.add_exception_handler(Unmodified, _nothing_new)
    app.add_exception_handler(RequestValidationError, _refuse_shape)
    app.add_exception_handler(HTTPException, _refuse_http)
    app.add_exception_handler(Exception, _crash)


def status_of(error: Exception) -> HTTPStatus:
    """The entry of the nearest class in the table."""
    return next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), HTTPStatus.INTERNAL_SERVER_ERROR)


def _refuse(_request: Request, error: Exception) -> JSONResponse:
    status = status_of(error)
    if isinstance(error, _KEPT_QUIET):
        log.warning("%s: %s", type(error).__name__, error)
        return _respond(Problem(status, "Unavailable", "The service cannot answer right now. Try again.", {}))
    headers = {"retry-after": str(math.ceil(error.retry_after_s))} if isinstance(error, Throttled) else {}
    return _respond(Problem(status, type(error).__name__, str(error), {}), headers)


def _refuse_shape(_request: Request, error: Exception) -> JSONResponse:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    violations = [{"member": ".".join(map(str, item["loc"][1:])), "message": item["msg"]} for item in found[:MOST_TOLD]]
    more = [f"and {len(found) - MOST_TOLD} more"] if len(found) > MOST_TOLD else []
    detail = "; ".join([*(f"{item['member'] or 'body'}: {item['message']}" for item in violations), *more])
    return _respond(Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", detail, {"violations": violations}))


def _refuse_members(_request: Request, error: Exception) -> JSONResponse:
    """What the service model finds wrong, by members as REST writes them: ``InstanceGroups[0].InstanceCount``."""
    violations = [_violation(text) for text in (error.violations if isinstance(error, Violated) else ())]
    return _respond(Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", str(error), {"violations": violations}))


def _violation(text: str) -> dict[str, str]:
    value_and_path, _, constraint = text.rpartition(" failed to satisfy constraint: ")
    path = re.sub(
        r"\.([0-9]{1,9})\.member(?=\.|$)", lambda found: f"[{int(found[1]) - 1}]", value_and_path.rpartition(" at ")[2].strip("'")
    )
    return {"member": ".".join(step[:1].upper() + step[1:] for step in path.split(".")), "message": constraint}


def _nothing_new(_request: Request, error: Exception) -> Response:
    revision = error.revision if isinstance(error, Unmodified) else ""
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"etag": tag(revision)})


def _refuse_http(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return _crash(_request, error)
    status = HTTPStatus(error.status_code)
    detail = _hint(_request) if status is HTTPStatus.NOT_FOUND else error.detail
    return _respond(Problem(status, status.phrase.replace(" ", ""), detail, {}), dict(error.headers or {}))


def _hint(request: Request) -> str:
    """There is no such path; what it may have been meant for."""
    if "arn:" in request.url.path:
        return "There is no such path. An ARN in a path must be percent-encoded, its slash as %2F."
    return "There is no such path; /openapi.json describes those that there are."


def _crash(request: Request, error: Exception) -> JSONResponse:
    """The server logs the traceback; the caller learns no more than that. It is answered around the envelope, so the id is put on here."""
    detail = f"An internal error occurred ({type(error).__name__}); the server's log has it."
    return _respond(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalFailure", detail, {}), {REQUEST_ID: request_id_of(request)})


def _respond(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    body = {
        "type": "about:blank",
        "title": problem.status.phrase,
        "status": problem.status.value,
        "code": problem.code,
        "detail": problem.detail,
        **problem.facts,
    }
    return JSONResponse(body, problem.status.value, headers, media_type=CONTENT_TYPE)
