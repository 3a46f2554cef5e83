"""REST routes of Everstep's own operations, made from their table.

Order matters: who calls is settled before anything about the request is told; nothing is written before the request is wholly valid; the
answer leaves after the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic.alias_generators import to_pascal
from starlette.requests import Request
from starlette.responses import Response

from api.aws.own import perform
from api.aws.pages import PageTokens
from api.deps import CallerDep, ServicesDep, work_of
from api.operations.audit import Call
from api.own.kinds import Own
from api.own.table import OWN
from api.own.wire import Asked, answer
from api.rest import replay
from api.rest.envelope import request_id_of
from api.rest.manners import add_manners
from api.rest.own_described import SECRET, described
from everstep import documents
from models.errors import Invalid, LimitExceeded

KEY_HEADER: Final = "idempotency-key"
_MAX_BODY: Final = 1024 * 1024
_YAML: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})


async def _body(request: Request) -> bytes:
    return await request.body()


BodyDep = Annotated[bytes, Depends(_body)]


def _endpoint(own: Own) -> Callable[..., Response]:
    def endpoint(request: Request, caller: CallerDep, body: BodyDep, services: ServicesDep) -> Response:
        call = Call("everstep", own.name, request.path_params, request_id_of(request))
        with work_of(services, caller, call) as work:
            asked = read(own, request, body)
            call.members = asked.model_dump(by_alias=True)
            tokens = PageTokens(services.settings.master_key)
            told = {"operation": own.name, "asked": asked.model_dump(mode="json")}
            return replay.once(work, _key(own, request), told, lambda: answer(perform(own, work, asked, tokens), own.status))

    endpoint.__doc__ = own.run.__doc__
    return endpoint


def _key(own: Own, request: Request) -> str | None:
    """The key of an operation that has no client token of its own; a GET changes nothing. Raises Invalid."""
    key = request.headers.get(KEY_HEADER)
    if key is not None and own.name in SECRET:
        raise Invalid(message=f"{own.name} takes no Idempotency-Key: its answer holds a secret, and would have to be kept.")
    return None if own.method == "GET" or "client_token" in own.takes.model_fields else key


def _routes() -> APIRouter:
    router = APIRouter()
    for own in OWN:
        router.add_api_route(
            own.path,
            _endpoint(own),
            methods=[own.method],
            name=own.name,
            operation_id=own.name,
            status_code=own.status,
            response_model=own.gives,
            tags=[own.path.split("/")[2]],
            **described(own),
        )
    add_manners(router)
    return router


# ------------------------------------------------------------------ reading a request


def read(own: Own, request: Request, body: bytes) -> Asked:
    """What is asked, from path, query, body and header together.

    Raises:
        RequestValidationError: a member is unknown, missing or not valid.
        DomainError: what the operation's own reading refuses.
    """
    path = dict(request.path_params)
    query = _query(own, request)
    if own.method in {"GET", "DELETE"}:
        if body.strip() not in {b"", b"{}"}:
            raise Invalid(message=f"{own.method} takes no body here; its members are in the query.")
        return _validated(own, query | path, "query", is_strict=False)
    if query:
        raise RequestValidationError([_error("query", name, "is no parameter of this operation") for name in query])
    document = _document(own, request, body)
    twice = [name for name in path if name in document or to_pascal(name) in document]
    if twice:
        raise RequestValidationError([_error("body", name, "is in the path") for name in twice])
    _take_key(own, request, document)
    if own.read is not None:
        return own.read(document | path)
    return _validated(own, document | path, "body", is_strict=True)


def _query(own: Own, request: Request) -> dict[str, Any]:
    """Every parameter by the name of its member; several values of one are a list."""
    members: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        member = own.also.get(name, name)
        if member in members or member in own.in_path:
            raise RequestValidationError([_error("query", name, f"means the same as {member!r}, which is there too")])
        members[member] = values if len(values) > 1 or member in _lists(own.takes) else values[0]
    return members


@cache
def _lists(takes: type[Asked]) -> frozenset[str]:
    """Members of which a query may have several values."""
    described = takes.model_json_schema(by_alias=False)["properties"]
    return frozenset(name for name, member in described.items() if '"array"' in json.dumps(member))


def _document(own: Own, request: Request, body: bytes) -> dict[str, Any]:
    """Raises Invalid, LimitExceeded."""
    if len(body) > _MAX_BODY:
        raise LimitExceeded(what=own.document, wanted=f"{len(body)} bytes", limit=f"{_MAX_BODY} bytes", remedy="Shorten it.")
    if not body and not own.has_body:
        return {}
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    try:
        document = documents.parse(body) if kind in _YAML else json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Invalid(message=f"{own.document} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise Invalid(message=f"{own.document} must be an object of keys and values.")
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that comes twice is an error, as it is in YAML: the last one's value is not what everybody meant."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            message = f"the key {key!r} is there twice"
            raise ValueError(message)
        members[key] = value
    return members


def _take_key(own: Own, request: Request, document: dict[str, Any]) -> None:
    """The header is the operation's client token, where it has one. Raises Invalid."""
    key = request.headers.get(KEY_HEADER)
    if key is None or "client_token" not in own.takes.model_fields:
        return
    given = [document[name] for name in ("client_token", to_pascal("client_token")) if document.get(name) is not None]
    if given and given != [key]:
        raise Invalid(message="Idempotency-Key and ClientToken differ; send one of them.")
    if not given:
        document["client_token"] = key


def _validated(own: Own, members: dict[str, Any], where: str, *, is_strict: bool) -> Asked:
    """A body is read strictly: a boolean is no number. A query is text, and read as what it says."""
    try:
        if is_strict:
            return own.takes.model_validate_json(json.dumps(members, allow_nan=False), strict=True)
        return own.takes.model_validate(members)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise RequestValidationError([item | {"loc": (where, *item["loc"])} for item in found]) from error
    except ValueError as error:
        raise Invalid(message=f"{own.document} cannot be read: {error}") from error


def _error(where: str, name: str, message: str) -> dict[str, Any]:
    return {"loc": (where, name), "msg": message, "type": "value_error"}


router = _routes()
