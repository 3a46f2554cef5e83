"""What is wrong, for agents: one table. 401 means register again, 409 that another start of this agent speaks now, 410 end, 503 try again.

400 names a report that can never be taken, so that the agent drops it instead of sending it for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi.routing import APIRoute
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.agents.wire import Malformed
from api.operations.agents import NodeGone, OtherBoot
from api.operations.reports import BadReport
from models.errors import DomainError, Unauthenticated

log = logging.getLogger(__name__)


class TooLarge(Exception):
    """The body is longer than any message of an agent; send fewer reports at once."""


STATUSES: dict[type[Exception], HTTPStatus] = {
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    NodeGone: HTTPStatus.GONE,
    OtherBoot: HTTPStatus.CONFLICT,
    Malformed: HTTPStatus.BAD_REQUEST,
    BadReport: HTTPStatus.BAD_REQUEST,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    DomainError: HTTPStatus.BAD_REQUEST,
    SQLAlchemyError: HTTPStatus.SERVICE_UNAVAILABLE,
}


class DoorRoute(APIRoute):
    """A route whose errors are answered by the table above."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def translated(request: Request) -> Response:
            try:
                return await handle(request)
            except tuple(STATUSES) as error:
                return answer(error)

        return translated


def answer(error: Exception) -> JSONResponse:
    status = next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)
    detail = str(error) or str(type(error).__doc__)
    if isinstance(error, SQLAlchemyError):
        log.warning("agents' door: %s", error.orig if isinstance(error, DBAPIError) else error)
        detail = "The database cannot be reached or is busy; try again."
    body = {"title": status.phrase, "status": int(status), "detail": detail}
    body |= {name: value for name, value in _where(error).items() if value is not None}
    return JSONResponse(body, int(status), media_type="application/problem+json")


def _where(error: Exception) -> dict[str, Any]:
    if isinstance(error, Malformed):
        return {"member": error.member, "index": error.index}
    if isinstance(error, BadReport):
        return {"member": f"reports[{error.facts['index']}]", "index": error.facts["index"]}
    return {}
