"""How OpenAPI describes SageMaker's operations in REST: shapes from the service model, words from our own tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from api.aws.json_schema import REFERENCE, Components, schema_of, structure
from api.aws.schema import sagemaker
from api.aws.table.kinds import Listing, Operation, Treatment
from api.aws.table.sagemaker import SAGEMAKER
from api.rest.sagemaker import served
from api.rest.sagemaker_routes import RestRoute

PROBLEMS: Final = (400, 401, 403, 422, 429, 503)
"""What every operation may answer. Others depend on what it names, and on whether it changes something."""
_JSON: Final = "application/json"
_IF_MATCH: Final = "An ETag: the change is made only if it is the present one's."
_IF_NONE_MATCH: Final = "An ETag: the answer is 304 if it is still the present one's."
_KEY: Final = "For eight hours a repetition with the same key is answered as the first request was, and does nothing."


def add_operations(document: dict[str, Any]) -> None:
    """Every route that is served, and the components that they need."""
    components: Components = {}
    for route in served():
        document["paths"].setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    schemas = document["components"]["schemas"]
    for name, schema in components.items():
        if schemas.setdefault(name, schema) != schema:
            message = f"Two components are named {name}: rename ours, the other is the service model's."
            raise ValueError(message)


def _operation(route: RestRoute, components: Components) -> dict[str, Any]:
    model, operation = sagemaker().operation_model(route.operation), SAGEMAKER[route.operation]
    told: dict[str, Any] = {
        "operationId": route.id,
        "tags": [route.path.split("/")[2]],
        "summary": route.text,
        "parameters": [*_parameters(route, model.input_shape, operation, components), *_headers(route)],
        "responses": _responses(route, model.output_shape, components),
    }
    if operation.note:
        told["description"] = operation.note
    if route.has_body:
        told["requestBody"] = _body(route, model.input_shape, operation, components)
    return told


def _parameters(route: RestRoute, shape: Any, operation: Operation | Listing, components: Components) -> Iterable[dict[str, Any]]:
    required = shape.metadata.get("required", ())
    for name, member in shape.members.items():
        is_in_path = name in route.in_path
        if not is_in_path and (route.has_body or name in _refused(operation)):
            continue
        where = "path" if is_in_path else "query"
        yield {
            "name": name,
            "in": where,
            "required": is_in_path or name in required,
            "schema": schema_of(member, components),
            **_note(operation, name),
        }


def _headers(route: RestRoute) -> Iterable[dict[str, Any]]:
    if route.revised and route.method == "GET":
        yield _header("If-None-Match", _IF_NONE_MATCH)
    elif route.revised:
        yield _header("If-Match", _IF_MATCH)
    if route.method != "GET":
        yield _header("Idempotency-Key", _KEY) | {
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
        }


def _header(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": text}


def _body(route: RestRoute, shape: Any, operation: Operation | Listing, components: Components) -> dict[str, Any]:
    """Members of the path are not in it, and members that are refused are not shown."""
    body = structure(shape, components, without={*route.in_path, *_refused(operation)})
    for name, schema in body["properties"].items():
        body["properties"][name] = schema | _note(operation, name)
    components[shape.name] = body
    return {"required": "required" in body, "content": {_JSON: {"schema": {"$ref": REFERENCE.format(name=shape.name)}}}}


def _refused(operation: Operation | Listing) -> set[str]:
    return {path for path, member in operation.members.items() if member.treatment is Treatment.REFUSED}


def _note(operation: Operation | Listing, name: str) -> dict[str, str]:
    note = operation.members[name].note if name in operation.members else ""
    return {"description": note} if note else {}


def _responses(route: RestRoute, shape: Any, components: Components) -> dict[str, Any]:
    told: dict[str, Any] = {"description": "Done." if route.status in {200, 204} else "Asked for; it goes on by itself."}
    if shape is not None and shape.members:
        told["content"] = {_JSON: {"schema": schema_of(shape, components)}}
    if route.revised and route.method == "GET":
        told["headers"] = {
            "ETag": {"schema": {"type": "string"}, "description": "Of what was asked for; not of how far it has come."}
        }
    statuses = {*PROBLEMS}
    if route.in_path or route.method != "GET":
        statuses.add(404)
    if route.method != "GET":
        statuses |= {409, 413, 415} if route.has_body else {409}
    if route.revised:
        statuses.add(304 if route.method == "GET" else 412)
    return {str(route.status): told} | {str(status): {} for status in sorted(statuses)}
