"""What every answer of ``/v1`` carries, whatever became of the request: an id that the server's log has as well."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.ids import new_request_id

HEADER: Final = "x-request-id"
_PREFIX: Final = "/v1/"
_LOOKS: Final = ("GET", "HEAD", "OPTIONS")
_WRONG: Final = 400
_KEY: Final = "everstep.request_id"

log = logging.getLogger(__name__)


class Envelope:
    """Around the whole application, so that a crash has an id too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIX):
            await self._app(scope, receive, send)
            return
        request_id, started, status = new_request_id(), perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        try:
            await self._app({**scope, _KEY: request_id}, receive, send_with_id)
        finally:
            took_ms = (perf_counter() - started) * 1000
            level = logging.DEBUG if scope["method"] in _LOOKS and 0 < status < _WRONG else logging.INFO
            log.log(level, "%s %s %s: %d in %.1f ms", request_id, scope["method"], scope["path"], status, took_ms)


def request_id_of(request: Request) -> str:
    """The id under which the request is in the log; a new one outside of ``/v1``."""
    return str(request.scope.get(_KEY) or new_request_id())
