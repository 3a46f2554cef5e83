"""From path, query and body of a REST request to the members of an operation's input, by their names in the service model.

Nothing is judged here but what REST adds: whatever is in the query is text, and becomes what the model says where it can; everything else is left
as it came, for the validation that both doors share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from api.aws.body import Unreadable, read_object
from api.rest.sagemaker_routes import RestRoute
from models.errors import Invalid

_MOST_FIELDS = 1000
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def read(route: RestRoute, shape: Any, path: Mapping[str, str], query: str, body: bytes) -> dict[str, Any]:
    """The members as they would be in AWS's JSON.

    Raises:
        Unreadable: the body is no JSON object, or the query is not URL-encoded text.
        Invalid: something is given twice, or where it does not belong.
    """
    in_query = _in_query(query, shape)
    members = read_object(body) if route.has_body else in_query
    if route.has_body and in_query:
        raise Invalid(
            message=f"The query has {', '.join(in_query)}: members of a {route.method} that are not in the path come in the body."
        )
    if not route.has_body and body.strip():
        raise Invalid(message=f"A {route.method} has no body: its members are in the path and in the query.")
    for name in path:
        if name in members:
            raise Invalid(message=f"{name} comes from the path: leave it out of the {'body' if route.has_body else 'query'}.")
    return {**members, **path}


def snake(name: str) -> str:
    """``ClusterName`` as ``cluster_name``."""
    return _WORDS.sub("_", name).lower()


def _in_query(query: str, shape: Any) -> dict[str, Any]:
    """By the model's names; one that the model does not have stays as it is, and is refused with the rest that is wrong."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        message = f"The query cannot be read: {error}"
        raise Unreadable(message) from error
    known = {snake(name): name for name in shape.members} if shape is not None else {}
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(known.get(name, name), []).append(value)
    return {name: _value(name, values, shape) for name, values in given.items()}


def _value(name: str, values: list[str], shape: Any) -> Any:
    member = None if shape is None else shape.members.get(name)
    if member is not None and member.type_name == "list":
        return values
    if len(values) > 1:
        raise Invalid(message=f"{name} is in the query {len(values)} times; it takes one value.")
    return values[0] if member is None else _scalar(member.type_name, values[0])


def _scalar(kind: str, text: str) -> Any:
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in {"integer", "long"} and re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return int(text)
    return text
