"""The service model's shapes as JSON Schema (2020-12), as REST speaks them: times are RFC 3339 text.

Structures and enums become components, by the names that the model gives them, each once; everything else stands where it is used. Nothing of the
model's documentation is copied.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from botocore.model import ListShape, MapShape, Shape, StructureShape

REFERENCE: Final = "#/components/schemas/{name}"
_POSIX: Final = {"Alnum": "a-zA-Z0-9", "Alpha": "a-zA-Z", "Digit": "0-9", "Lower": "a-z", "Upper": "A-Z"}
_KINDS: Final[dict[str, dict[str, Any]]] = {
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "format": "int32"},
    "long": {"type": "integer", "format": "int64"},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "timestamp": {"type": "string", "format": "date-time"},
}
_RANGES: Final = {"integer": 2**31, "long": 2**63}

Components = dict[str, dict[str, Any]]


def schema_of(shape: Shape, components: Components) -> dict[str, Any]:
    """The schema of a shape; components that it refers to are added."""
    if isinstance(shape, StructureShape):
        if shape.name not in components:
            components[shape.name] = {}  # before its members: one of them may contain it
            components[shape.name] = structure(shape, components)
        return {"$ref": REFERENCE.format(name=shape.name)}
    if isinstance(shape, ListShape):
        return {"type": "array", "items": schema_of(shape.member, components)} | _bounds(shape, "minItems", "maxItems")
    if isinstance(shape, MapShape):
        keys, values = schema_of(shape.key, components), schema_of(shape.value, components)
        bounds = _bounds(shape, "minProperties", "maxProperties")
        return {"type": "object", "additionalProperties": values, "propertyNames": keys} | bounds
    if shape.type_name == "string":
        return _string(shape, components)
    limit = _RANGES.get(shape.type_name)
    range_ = {} if limit is None or shape.type_name == "long" else {"minimum": -limit, "maximum": limit - 1}
    return _KINDS[shape.type_name] | range_ | _bounds(shape, "minimum", "maximum")


def structure(shape: StructureShape, components: Components, *, without: Collection[str] = ()) -> dict[str, Any]:
    """A structure, less some of its members. What it does not have is refused, so nothing else may be there."""
    properties = {name: schema_of(member, components) for name, member in shape.members.items() if name not in without}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [name for name in shape.metadata.get("required", ()) if name in properties]
    if required:
        schema["required"] = required
    if shape.is_tagged_union:
        schema |= {"minProperties": 1, "maxProperties": 1}
    return schema


def ecma(pattern: str) -> str:
    r"""A pattern of the model, which is Java's and holds for the whole text, as ECMA-262 with the ``u`` flag has it."""
    inside = re.sub(r"\\p\{(\w+)\}", lambda found: _POSIX.get(found[1], found[0]), pattern)
    return f"^(?:{inside})$"


def _string(shape: Shape, components: Components) -> dict[str, Any]:
    enum = getattr(shape, "enum", ())
    if enum:
        components.setdefault(shape.name, {"type": "string", "enum": list(enum)})
        return {"$ref": REFERENCE.format(name=shape.name)}
    schema: dict[str, Any] = {"type": "string"} | _bounds(shape, "minLength", "maxLength")
    if "pattern" in shape.metadata:
        schema["pattern"] = ecma(shape.metadata["pattern"])
    return schema


def _bounds(shape: Shape, least: str, most: str) -> dict[str, Any]:
    metadata = shape.metadata
    return {name: metadata[key] for name, key in ((least, "min"), (most, "max")) if key in metadata}
