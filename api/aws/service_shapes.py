"""From JSON schemas of pydantic to the shapes of a botocore service model. Pure, and the same every time.

Null has no place on the AWS side: a member that may be null is one that may be left out. An object of which nothing is said (a job file, an
event's details) is a document: botocore passes it through as it stands.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_pascal

Schema = dict[str, Any]
NUMBERS_BEYOND_JSON = ("NaN", "Infinity", "-Infinity")
_INT_MAX = 2**31 - 1
_PLAIN = {"string": "String", "integer": "Long", "number": "Double", "boolean": "Boolean"}


class Clash(Exception):
    """Two different shapes would have one name; rename one of the classes."""


class Shapes:
    """Collects shapes by name. ``parts`` are the definitions that a schema refers to."""

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}

    def add_input(self, name: str, takes: type[BaseModel]) -> None:
        """The token that makes a repetition harmless is one that clients fill in."""
        schema = takes.model_json_schema(by_alias=True, mode="validation")
        shape = self._structure(name, schema, schema.pop("$defs", {}))
        if "ClientToken" in shape["members"]:
            shape["members"]["ClientToken"]["idempotencyToken"] = True
        self._put(name, shape)

    def add_output(self, name: str, gives: type[BaseModel]) -> None:
        schema = gives.model_json_schema(by_alias=True, mode="serialization")
        self._put(name, self._structure(name, schema, schema.pop("$defs", {})))

    def add_error(self, name: str, status: int, documentation: str) -> None:
        told = {"Message": {"shape": self._put("String", {"type": "string"})}}
        error = {"httpStatusCode": status, "senderFault": status < 500}  # noqa: PLR2004  (HTTP's own border)
        self._put(name, {"type": "structure", "members": told, "documentation": documentation, "error": error, "exception": True})

    # ------------------------------------------------------------------ one schema

    def _structure(self, name: str, schema: Schema, parts: Schema) -> Schema:
        owner = re.sub(r"(Request|Response)$", "", name)
        members, required = {}, []
        for member, described in schema.get("properties", {}).items():
            inner, is_nullable = _without_null(described)
            if member in schema.get("required", ()) and not is_nullable:
                required.append(member)
            members[member] = {"shape": self._shape(owner + member, inner, parts)} | _documentation(described)
        shape: Schema = {"type": "structure"}
        if required:
            shape["required"] = required
        return shape | {"members": members} | _documentation(schema)

    def _shape(self, hint: str, schema: Schema, parts: Schema) -> str:
        """The name of the schema's shape, which is added if it is new. ``hint`` names it if it has no name of its own."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            part = parts[name]
            return self._put(name, self._structure(name, part, parts)) if "properties" in part else self._shape(name, part, parts)
        if "anyOf" in schema:
            return self._shape(hint, _one_of(hint, schema["anyOf"]), parts)
        match schema.get("type", "string" if "enum" in schema else None):
            case "array":
                return self._list(hint, schema, parts)
            case "object":
                return self._object(hint, schema, parts)
            case kind if kind in _PLAIN:
                return self._scalar(hint, schema, kind)
        message = f"{hint}: no shape for {schema}"
        raise Clash(message)

    def _list(self, hint: str, schema: Schema, parts: Schema) -> str:
        item = self._shape(f"{hint}Item", schema["items"], parts)
        bounds = _bounds(schema, "minItems", "maxItems")
        return self._put(hint if bounds else f"{item}List", {"type": "list", "member": {"shape": item}} | bounds)

    def _object(self, hint: str, schema: Schema, parts: Schema) -> str:
        values = schema.get("additionalProperties", True)
        if values is True or values == {}:
            return self._put("Document", {"type": "structure", "members": {}, "document": True})
        key = self._shape(f"{hint}Key", {"type": "string"} | schema.get("propertyNames", {}), parts)
        value = self._shape(f"{hint}Value", values, parts)
        bounds = _bounds(schema, "minProperties", "maxProperties")
        name = hint if bounds or key != "String" else f"{value}Map"
        return self._put(name, {"type": "map", "key": {"shape": key}, "value": {"shape": value}} | bounds)

    def _scalar(self, hint: str, schema: Schema, kind: str) -> str:
        if schema.get("format") == "date-time":
            return self._put("Timestamp", {"type": "timestamp"})
        enum = [schema["const"]] if "const" in schema else schema.get("enum")
        if enum:
            return self._put(hint, {"type": "string", "enum": list(enum)})
        if kind == "string":
            limits = _bounds(schema, "minLength", "maxLength") | ({"pattern": schema["pattern"]} if "pattern" in schema else {})
            return self._put(hint if limits else "String", {"type": "string"} | limits)
        if kind == "boolean":
            return self._put("Boolean", {"type": "boolean"})
        limits = _range(schema)
        name = "double" if kind == "number" else "integer" if _is_small(limits) else "long"
        return self._put(hint if limits else _PLAIN[kind], {"type": name} | limits)

    def _put(self, name: str, shape: Schema) -> str:
        name = name[:1].upper() + name[1:]
        if self.found.setdefault(name, shape) != shape:
            message = f"two shapes are called {name}: {self.found[name]} and {shape}"
            raise Clash(message)
        return name


def _without_null(schema: Schema) -> tuple[Schema, bool]:
    arms = schema.get("anyOf", [])
    kept = [arm for arm in arms if arm != {"type": "null"}]
    if len(kept) == len(arms):
        return schema, False
    return (kept[0] if len(kept) == 1 else {"anyOf": kept}), True


def _one_of(hint: str, arms: list[Schema]) -> Schema:
    """A number that JSON may have no word for is a double; nothing else has two types."""
    kinds = [arm for arm in arms if arm.get("enum") != list(NUMBERS_BEYOND_JSON)]
    if len(kinds) == 1:
        return kinds[0]
    message = f"{hint}: a member has one type, not one of {arms}"
    raise Clash(message)


def _bounds(schema: Schema, least: str, most: str) -> Schema:
    return {name: schema[key] for name, key in (("min", least), ("max", most)) if key in schema}


def _range(schema: Schema) -> Schema:
    """Of integers exclusive bounds become inclusive; of other numbers they cannot be said, and the operation refuses them itself."""
    limits = _bounds(schema, "minimum", "maximum")
    if schema["type"] == "integer":
        if "exclusiveMaximum" in schema:
            limits["max"] = schema["exclusiveMaximum"] - 1
        if "exclusiveMinimum" in schema:
            limits["min"] = schema["exclusiveMinimum"] + 1
    return limits


def _is_small(limits: Schema) -> bool:
    return "min" in limits and "max" in limits and limits["min"] >= -_INT_MAX and limits["max"] <= _INT_MAX


def _documentation(schema: Schema) -> Schema:
    """Docstrings are written for Python: what a member is called there, it is called otherwise here."""
    told = " ".join(str(schema.get("description", "")).split())
    return {"documentation": re.sub(r"``(\w+)``", lambda found: f"``{to_pascal(found[1])}``", told)} if told else {}
