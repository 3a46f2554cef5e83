"""What a path says to methods that it does not serve: OPTIONS and 405 tell which it does, HEAD is a GET without its body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_ALL: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


def allow(methods: Iterable[str]) -> str:
    """The Allow header."""
    served = set(methods)
    return ", ".join(sorted(served | {"OPTIONS"} | ({"HEAD"} if "GET" in served else set())))


def add_manners(router: APIRouter) -> None:
    """For all the paths that the router has so far."""
    by_path: dict[str, set[str]] = {}
    for route in [route for route in router.routes if isinstance(route, APIRoute)]:
        methods = route.methods or set()
        by_path.setdefault(route.path, set()).update(methods)
        if "GET" in methods:
            router.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)
    for path, methods in by_path.items():
        others = _ALL - methods - ({"HEAD"} if "GET" in methods else set())
        router.add_route(path, _otherwise(allow(methods)), methods=sorted(others), include_in_schema=False)


def _otherwise(allowed: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"allow": allowed})
        raise HTTPException(405, headers={"allow": allowed})

    return answer
