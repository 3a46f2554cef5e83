"""Holds answers against botocore's service model, as strictly as a typed SDK would: by JSON Schema, made from the model independently
of the code under test."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from botocore.model import OperationModel, Shape

from api.aws.patterns import compile_pattern


def check_answer(http_response: Any, model: OperationModel, **_context: Any) -> None:
    """A handler of botocore's ``after-call`` event."""
    assert http_response.headers["x-amzn-requestid"]
    assert http_response.headers["content-type"] == "application/x-amz-json-1.1"
    body = json.loads(http_response.content)
    if http_response.status_code != 200:
        assert isinstance(body["__type"], str), "an error names its code"
        assert body["message"] == body["Message"] != ""
        return
    check(model, body)


def check(model: OperationModel, body: Any) -> None:
    if model.output_shape is None:
        assert body == {}
        return
    jsonschema.Draft202012Validator(schema_of(model.output_shape)).validate(body)


def schema_of(shape: Shape) -> dict[str, Any]:
    """Unknown members, nulls, wrong types, casing of enums, patterns, lengths and ranges are all violations."""
    return _SCHEMAS[shape.type_name](shape)


def _structure(shape: Any) -> dict[str, Any]:
    if shape.is_document_type:
        return {"type": "object"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema_of(member) for name, member in shape.members.items()},
        "required": list(shape.required_members),
        "additionalProperties": False,
    }
    if shape.is_tagged_union:
        schema |= {"minProperties": 1, "maxProperties": 1}
    return schema


def _list(shape: Any) -> dict[str, Any]:
    return {"type": "array", "items": schema_of(shape.member)} | _bounds(shape, "minItems", "maxItems")


def _map(shape: Any) -> dict[str, Any]:
    keys = {"propertyNames": schema_of(shape.key), "additionalProperties": schema_of(shape.value)}
    return {"type": "object"} | keys | _bounds(shape, "minProperties", "maxProperties")


def _string(shape: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"} | _bounds(shape, "minLength", "maxLength")
    if shape.enum:
        schema["enum"] = list(shape.enum)
    pattern = compile_pattern(shape.metadata["pattern"]) if "pattern" in shape.metadata else None
    if pattern is not None:
        schema["pattern"] = f"^(?:{pattern.pattern})$"
    return schema


def _real(shape: Any) -> dict[str, Any]:
    """The protocol spells numbers that JSON has no word for as text."""
    return {"anyOf": [_number("number")(shape), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def _number(kind: str) -> Any:
    return lambda shape: {"type": kind} | _bounds(shape, "minimum", "maximum")


def _bounds(shape: Any, least: str, most: str) -> dict[str, Any]:
    metadata = shape.metadata
    return {name: metadata[key] for name, key in ((least, "min"), (most, "max")) if key in metadata}


def _timestamp(_shape: Any) -> dict[str, Any]:
    """Seconds since the epoch: milliseconds would be beyond the maximum, and crash boto3."""
    return {"type": "number", "minimum": 1_000_000_000, "maximum": 10_000_000_000}


_SCHEMAS = {
    "structure": _structure,
    "list": _list,
    "map": _map,
    "string": _string,
    "integer": _number("integer"),
    "long": _number("integer"),
    "float": _real,
    "double": _real,
    "boolean": lambda _shape: {"type": "boolean"},
    "timestamp": _timestamp,
}
