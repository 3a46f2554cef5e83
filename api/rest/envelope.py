"""What every answer of ``/v1`` carries: an id that the server's log has as well, and how many more requests the key may make."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Final
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.ids import new_request_id

HEADER: Final = "x-request-id"
REMAINING: Final = "ratelimit-remaining"
"""How many more requests the key may make at once; they come back with time."""
_PREFIX: Final = "/v1/"
_LOOKS: Final = ("GET", "HEAD", "OPTIONS")
_WRONG: Final = 400
_CRASHED: Final = 500
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
        request_id, started, status = new_request_id(), perf_counter(), _CRASHED
        scope[_KEY] = request_id  # also for whoever answers a crash, which is not told in here
        inside: Scope = {**scope, "state": {**scope.get("state", {})}}

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({HEADER: request_id, **_allowance(inside)})
            await send(message)

        try:
            await self._app(inside, receive, send_with_id)
        finally:
            took_ms = (perf_counter() - started) * 1000
            level = logging.DEBUG if scope["method"] in _LOOKS and status < _WRONG else logging.INFO
            path = quote(scope["path"])  # what was a line's end in it must not become one in the log
            log.log(level, "%s %s %s: %d in %.1f ms", request_id, scope["method"], path, status, took_ms)


def _allowance(scope: Scope) -> dict[str, str]:
    """What authentication has found out about the caller's rate, if it came so far and anything is counted."""
    left = scope["state"].get("requests_left")
    return {} if left is None else {REMAINING: str(left)}


def request_id_of(request: Request) -> str:
    """The id under which the request is in the log; a new one outside of ``/v1``."""
    return str(request.scope.get(_KEY) or new_request_id())
