"""The route that follows events: the path of their listing, with ``follow`` in the query."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from api.auth import permit
from api.deps import authenticated, services_of
from api.own.feed import LIST_EVENTS, EventsToTell, after, wish
from api.rest.own import read
from models.errors import Invalid
from models.feed import Position

_FOLLOW: Final = "follow"
_OF_PAGES: Final = ("max_results", "next_token", "sort_order")


class FollowRoute(Route):
    """It must come before the listing's."""

    def __init__(self) -> None:
        super().__init__(LIST_EVENTS.path, follow, methods=["GET"])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != LIST_EVENTS.path:
            return Match.NONE, {}
        is_asked = any(name == _FOLLOW for name, _ in _pairs(scope))
        return (Match.FULL, {"endpoint": self.endpoint}) if is_asked else (Match.NONE, {})


async def follow(request: Request) -> Response:
    """Events from now on, or from the one after Last-Event-ID or ``after``."""
    caller = await authenticated(request, services_of(request))
    permit(caller, "everstep", LIST_EVENTS.name)
    asked = _asked(request)
    last = request.headers.get("last-event-id")
    position = after(asked) if last is None else Position.parse(last)
    answer: Response = await request.app.state.desk.begin(caller, wish(asked), position)
    return answer


def _asked(request: Request) -> EventsToTell:
    """Raises RequestValidationError, Invalid."""
    pairs = _pairs(request.scope)
    if any(value.lower() not in {"true", "1"} for name, value in pairs if name == _FOLLOW):
        raise Invalid(message="follow is true, or is left out for a listing.")
    rest = urlencode([(name, value) for name, value in pairs if name != _FOLLOW]).encode()
    asked: Any = read(LIST_EVENTS, Request({**request.scope, "query_string": rest}), b"")
    paged = asked.model_fields_set & set(_OF_PAGES)
    if paged:
        raise Invalid(message=f"{', '.join(sorted(paged))} is for a listing; with follow events come in their order, one by one.")
    return EventsToTell.model_validate(asked)


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
