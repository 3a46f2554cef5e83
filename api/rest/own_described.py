"""How OpenAPI describes an own operation: parameters and body from what it takes, problems from what it may raise."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from pydantic.alias_generators import to_pascal

from api import sigv4
from api.deps import TooLarge
from api.own.kinds import Own, OwnTable
from api.rest.errors import CONTENT_TYPE, status_of
from models import errors as domain

ALWAYS: Final[tuple[Exception, ...]] = (
    domain.Invalid(message=""),
    domain.Unauthenticated(),
    domain.Forbidden(message=""),
    sigv4.MissingSignature(),
    TooLarge(),
    domain.StaleLease(kind="", name="", token=""),
)
"""What any operation may answer besides its own errors."""
_SCHEMAS: Final = "#/components/schemas/"
SECRET: Final = frozenset({"CreateKey", "RotateKey"})
"""Their answers hold what is kept nowhere, so that they cannot be given again."""
PROBLEM: Final[dict[str, Any]] = {
    "title": "Problem",
    "description": "RFC 9457. `code` is for programs, `detail` for people.",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "violations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"member": {"type": "string"}, "message": {"type": "string"}},
                "required": ["member", "message"],
            },
        },
    },
    "required": ["type", "title", "status", "code", "detail"],
}


def add_components(document: dict[str, Any], table: OwnTable) -> None:
    """Adds to an OpenAPI document what the descriptions of these operations refer to."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = PROBLEM
    for own in table:
        schemas.update(components(own))


def described(own: Own) -> dict[str, Any]:
    """Arguments of FastAPI's ``add_api_route``."""
    operation: dict[str, Any] = {"parameters": list(_parameters(own))}
    if own.has_body:
        operation["requestBody"] = _body(own)
    return {"summary": own.description, "description": "", "responses": _problems(own), "openapi_extra": operation}


def _parameters(own: Own) -> Iterable[dict[str, Any]]:
    schema = inlined(own.takes.model_json_schema(by_alias=False))
    is_query = own.method in {"GET", "DELETE"}
    for name, member in schema.get("properties", {}).items():
        in_path = name in own.in_path
        if not in_path and not is_query:
            continue
        where = "path" if in_path else "query"
        parameter = {"name": name, "in": where, "required": in_path or name in schema.get("required", ())}
        yield parameter | {"schema": _bare(member)} | _description(member)
    for other, name in own.also.items():
        # Without its default, which generated clients would send beside that of the member itself.
        member = {word: value for word, value in _bare(schema["properties"][name]).items() if word != "default"}
        yield {"name": other, "in": "query", "required": False, "deprecated": True, "schema": member, "description": f"`{name}`."}
    if own.method != "GET" and own.name not in SECRET:
        key = {"type": "string", "minLength": 1, "maxLength": 255}
        told = "A repetition with the same key is the same request."
        yield {"name": "Idempotency-Key", "in": "header", "required": False, "schema": key, "description": told}


def _body(own: Own) -> dict[str, Any]:
    kinds = ("application/json",) if own.read is None else ("application/json", "application/yaml")
    schema = {"$ref": f"{_SCHEMAS}{own.name}Request"}
    is_required = bool(components(own)[f"{own.name}Request"]["required"])
    return {"required": is_required, "content": {kind: {"schema": schema} for kind in kinds}}


def components(own: Own) -> dict[str, dict[str, Any]]:
    """The schemas that the operation's body refers to, by their names.

    A document of its own kind is described as people write it, in snake_case; both spellings are taken.
    """
    if not own.has_body:
        return {}
    schema = own.takes.model_json_schema(by_alias=own.read is None, ref_template=_SCHEMAS + "{model}")
    parts: dict[str, Any] = schema.pop("$defs", {})
    hidden = {spelling for name in own.in_path for spelling in (name, to_pascal(name))}
    schema["properties"] = {name: member for name, member in schema["properties"].items() if name not in hidden}
    schema["required"] = [name for name in schema.get("required", ()) if name not in hidden]
    schema["title"] = f"{own.name}Request"
    return {**parts, schema["title"]: schema}


def _problems(own: Own) -> dict[int | str, dict[str, Any]]:
    classes: dict[HTTPStatus, list[str]] = {}
    for error in ALWAYS:
        classes.setdefault(status_of(error), [])
    for cls in own.errors:
        classes.setdefault(status_of(cls.__new__(cls)), []).append(cls.__name__)
    content = {CONTENT_TYPE: {"schema": {"$ref": f"{_SCHEMAS}Problem"}}}
    return {
        status.value: {"description": ", ".join([status.phrase, *names]) + ".", "content": content}
        for status, names in sorted(classes.items())
    }


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema whose references are replaced by what they lead to; what operations take never contains itself."""
    parts: dict[str, Any] = schema.pop("$defs", {})

    def resolve(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                found = resolve(parts[part["$ref"].rpartition("/")[2]])
                return found | {name: value for name, value in part.items() if name != "$ref"}
            return {name: resolve(value) for name, value in part.items()}
        return [resolve(item) for item in part] if isinstance(part, list) else part

    whole: dict[str, Any] = resolve(schema)
    return whole


def _bare(member: dict[str, Any]) -> dict[str, Any]:
    """A parameter that may be left out is not null: null has no spelling in a query."""
    arms = [arm for arm in member.get("anyOf", ()) if arm != {"type": "null"}]
    if len(arms) == 1:
        member = {name: value for name, value in member.items() if name != "anyOf" and value is not None} | arms[0]
    return {name: value for name, value in member.items() if name not in {"title", "description"}}


def _description(member: dict[str, Any]) -> dict[str, Any]:
    return {"description": member["description"]} if "description" in member else {}
