"""``/v1/clusters`` and what belongs to it: SageMaker's operations in REST, with the rules of AWS's JSON door.

One table of routes, one of operations; reading, validation and use-cases are those of the other door. What is added is REST's: paths and queries,
ETags, ``Idempotency-Key``, times as text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from api.auth import Caller
from api.aws.pages import PageTokens
from api.aws.schema import sagemaker
from api.aws.support import read_request
from api.aws.table.kinds import perform
from api.aws.table.sagemaker import SAGEMAKER
from api.deps import Services, authenticated, services_of, work_of
from api.operations import revisions
from api.operations.audit import Call
from api.operations.work import Work
from api.rest import replay
from api.rest.conditions import check_match, check_none_match, tag
from api.rest.envelope import request_id_of
from api.rest.manners import allow
from api.rest.members import read
from api.rest.sagemaker_routes import ROUTES, RestRoute
from api.rest.written import written

JSON: Final = "application/json"
REVISIONS: Final[dict[str, Callable[..., str]]] = {
    "cluster": revisions.of_cluster,
    "scheduler-config": revisions.of_scheduler_config,
    "compute-quota": revisions.of_quota,
}
"""By what a route says is revised. The second argument is the member that names the resource."""
_NO_CONTENT: Final = 204


class UnsupportedMediaType(HTTPException):
    """A body that is no JSON, by its own word."""


@dataclass(frozen=True)
class Asked:
    """A request that is ready to be carried out."""

    route: RestRoute
    path: Mapping[str, str]
    query: str
    headers: Mapping[str, str]
    body: bytes


class Door:
    """Serves the routes of one path."""

    def __init__(self, by_method: Mapping[str, RestRoute], tokens: PageTokens) -> None:
        self._by_method = by_method
        self._tokens = tokens

    async def answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=_NO_CONTENT, headers={"allow": allow(self._by_method)})
        services = services_of(request)
        caller = await authenticated(request, services)
        route = self._by_method["GET" if request.method == "HEAD" else request.method]
        body = await request.body()
        query = request.scope.get("query_string", b"").decode("latin-1")
        asked = Asked(route, request.path_params, query, request.headers, body)
        return await run_in_threadpool(self._serve, services, caller, asked, request_id_of(request))

    def _serve(self, services: Services, caller: Caller, asked: Asked, request_id: str) -> Response:
        route = asked.route
        model, operation = sagemaker().operation_model(route.operation), SAGEMAKER[route.operation]
        key = asked.headers.get(replay.HEADER) if route.method != "GET" else None
        digest = hashlib.sha256(asked.body).hexdigest()
        request = {"method": route.method, "path": route.path, "of": dict(asked.path), "query": asked.query, "body": digest}
        call = Call("sagemaker", route.operation, asked.path, request_id)
        with work_of(services, caller, call) as work:
            if route.has_body and asked.body:
                _check_type(asked.headers.get("content-type", JSON))
            call.members = read(route, model.input_shape, asked.path, asked.query, asked.body)
            members = read_request(model, operation, call.members)
            return replay.once(work, key, request, lambda: self._carry_out(work, asked, members))

    def _carry_out(self, work: Work, asked: Asked, members: Mapping[str, Any]) -> Response:
        """Conditions are checked under the lock under which the change is made."""
        route, headers = asked.route, {}
        if route.revised and (route.method != "GET" or not asked.query):  # an older version, if asked for, is not the present one
            headers = _conditions(work, asked, members[route.in_path[0]], REVISIONS[route.revised])
        output = sagemaker().operation_model(route.operation).output_shape
        answer = perform(route.operation, SAGEMAKER[route.operation], work, members, self._tokens)
        if route.status == _NO_CONTENT:
            return Response(status_code=_NO_CONTENT)
        return Response(json.dumps(written(output, answer)), route.status, headers, media_type=JSON)


def _conditions(work: Work, asked: Asked, name: str, revision_of: Callable[..., str]) -> dict[str, str]:
    """Headers of the answer. Raises PreconditionFailed, Unmodified, Invalid, NotFound."""
    if asked.route.method == "GET":
        revision = revision_of(work, name)
        if "if-none-match" in asked.headers:
            check_none_match(asked.headers["if-none-match"], revision)
        return {"etag": tag(revision)}
    if "if-match" in asked.headers:
        check_match(asked.headers["if-match"], revision_of(work, name, lock=True))
    return {}


class ResourceRoute(Route):
    """All methods of one path, which is matched as it was sent: the slash of an ARN in it is encoded, and separates nothing."""

    def __init__(self, path: str, door: Callable[[Request], Any], methods: Sequence[str]) -> None:
        super().__init__(path, door, methods=methods)
        self._segments = path.split("/")

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As Starlette's, with an Allow header that does not differ from time to time."""
        if self.methods and scope["method"] not in self.methods:
            raise HTTPException(405, headers={"allow": ", ".join(sorted(self.methods))})
        await super().handle(scope, receive, send)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        sent = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0].decode("latin-1").split("/")
        values = _values(self._segments, sent)
        if values is None:
            return Match.NONE, {}
        is_served = self.methods is not None and scope["method"] in self.methods
        return (Match.FULL if is_served else Match.PARTIAL), {"endpoint": self.endpoint, "path_params": values}


def _values(segments: Sequence[str], sent: Sequence[str]) -> dict[str, str] | None:
    if len(segments) != len(sent):
        return None
    values = {}
    for segment, word in zip(segments, sent, strict=True):
        if segment.startswith("{"):
            if not word:
                return None
            values[segment[1:-1]] = unquote(word)
        elif segment != word:
            return None
    return values


def routes(master_key: bytes) -> list[ResourceRoute]:
    """A route a path; those without names come first. Operations that the table does not have are not routed."""
    tokens = PageTokens(master_key)
    by_path: dict[str, dict[str, RestRoute]] = {}
    for route in served():
        by_path.setdefault(route.path, {})[route.method] = route
    return [
        ResourceRoute(path, Door(by_method, tokens).answer, allow(by_method).split(", "))
        for path, by_method in sorted(by_path.items(), key=lambda entry: (entry[0].count("{"), entry[0]))
    ]


def served() -> tuple[RestRoute, ...]:
    """Routes whose operation is served by this installation's service model."""
    known = frozenset(sagemaker().operation_names)
    return tuple(route for route in ROUTES if route.operation in SAGEMAKER and route.operation in known)


def _check_type(header: str) -> None:
    kind = header.partition(";")[0].strip().lower()
    if kind != JSON:
        raise UnsupportedMediaType(415, f"Content-Type is {kind!r}; the body must be {JSON}.")
