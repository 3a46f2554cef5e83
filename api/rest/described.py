"""What all operations of the control plane's OpenAPI document share: who may call, and what a problem looks like."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from api.own.feed import POSITION
from api.rest.errors import CONTENT_TYPE

_PREFIX: Final = "/v1/"
_FIRST_PROBLEM: Final = 400
_SECURITY: Final[dict[str, Any]] = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, as `everstep env` prints it or CreateKey answers it."},
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "AWS Signature Version 4 of an access key; the scope's service is `sagemaker` or `everstep`.",
    },
}
_REQUEST_ID: Final[dict[str, Any]] = {
    "schema": {"type": "string", "format": "uuid"},
    "description": "The server's log has it, too.",
}
_EVERYWHERE: Final = (400, 401, 403, 422, 429, 503)
"""Statuses that any call of `/v1` may have."""


def finish(document: dict[str, Any]) -> None:
    """Problems become references to shared responses, and every operation says who may call it."""
    problems: dict[str, Any] = {}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _finish(path, operation, problems)
    document["components"]["responses"] = problems
    document["components"]["headers"] = {"X-Request-Id": _REQUEST_ID}
    document["components"]["securitySchemes"] = _SECURITY


def add_follow(document: dict[str, Any]) -> None:
    """The listing of events is also a stream of them."""
    listing = document["paths"]["/v1/events"]["get"]
    follow = {"name": "follow", "in": "query", "required": False, "schema": {"type": "boolean", "const": True}}
    last = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string", "pattern": POSITION}}
    listing["parameters"] += [
        follow
        | {"description": "Answer with server-sent events, from now on or after `after`, until one side ends it; not with pages."},
        last | {"description": "With `follow`: the id of the last event seen; what came after it is told first."},
    ]
    stream = {"type": "string", "description": "Server-sent events: `id` is a position, `data` is a FeedShape."}
    listing["responses"]["200"]["content"]["text/event-stream"] = {"schema": stream}


def _finish(path: str, operation: dict[str, Any], problems: dict[str, Any]) -> None:
    responses = operation["responses"]
    if not path.startswith(_PREFIX):
        operation["security"] = []
        return
    operation["security"] = [{"token": []}, {"signature": []}]
    for status in _EVERYWHERE:
        responses.setdefault(str(status), {})
    for status, told in responses.items():
        number = HTTPStatus(int(status))
        if number is HTTPStatus.NOT_MODIFIED:
            told["description"] = "It is as the caller has it."
        elif number >= _FIRST_PROBLEM:
            name = number.phrase.title().replace(" ", "")
            problems[name] = _problem(number)
            responses[status] = {"$ref": f"#/components/responses/{name}"}
        else:
            told.setdefault("headers", {})["X-Request-Id"] = {"$ref": "#/components/headers/X-Request-Id"}


def _problem(status: HTTPStatus) -> dict[str, Any]:
    headers: dict[str, Any] = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        headers["Retry-After"] = {"schema": {"type": "integer"}, "description": "Seconds."}
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": f"{status.phrase}.", "content": {CONTENT_TYPE: {"schema": schema}}, "headers": headers}
