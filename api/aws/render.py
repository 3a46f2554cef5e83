"""Writes an answer through the service model's output shape.

Members that the installed model does not have are left out, and so are absent ones: ``null`` breaks strict SDKs. Each shape is read once, and becomes
a function: walking the model for every answer cost more than the database did.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from math import isfinite
from typing import Any, Final

from botocore.model import ListShape, MapShape, Shape, StructureShape

Writer = Callable[[Any], Any]


def render(shape: Shape | None, value: Any) -> Any:
    """The value as JSON; timestamps become seconds since the epoch, in milliseconds' precision."""
    return {} if shape is None else _writer(shape)(value)


@cache
def _writer(shape: Shape) -> Writer:
    if isinstance(shape, StructureShape):
        return _as_it_is if shape.is_document_type else _structure(shape)
    if isinstance(shape, ListShape):
        return _list(shape)
    if isinstance(shape, MapShape):
        return _map(shape)
    return _SCALARS.get(shape.type_name, _scalar)


def _structure(shape: StructureShape) -> Writer:
    members = shape.members
    writers: dict[str, Writer | None] = {}

    def write(value: Any) -> dict[str, Any]:
        if not writers:  # not before it is needed: a shape may hold itself
            writers.update((name, _or_none(_writer(member))) for name, member in members.items())
        written = {}
        for name, item in value.items():
            if item is not None and name in writers:
                writer = writers[name]
                written[name] = item if writer is None else writer(item)
        return written

    return write


def _list(shape: ListShape) -> Writer:
    member = shape.member

    def write(value: Any) -> list[Any]:
        writer = _writer(member)
        return [writer(item) for item in value]

    return write


def _map(shape: MapShape) -> Writer:
    member = shape.value

    def write(value: Any) -> dict[str, Any]:
        writer = _writer(member)
        return {key: writer(item) for key, item in value.items()}

    return write


def _or_none(writer: Writer) -> Writer | None:
    """None for a writer that has nothing to do, so that it is not called."""
    return None if writer is _as_it_is else writer


def _as_it_is(value: Any) -> Any:
    return value


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        return round(whole_milliseconds(value).timestamp(), 3)
    return _BEYOND_JSON[str(value)] if isinstance(value, float) and not isfinite(value) else value


_SCALARS: Final[dict[str, Writer]] = {"string": _as_it_is, "integer": _as_it_is, "long": _as_it_is, "boolean": _as_it_is}
_BEYOND_JSON: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Numbers that JSON has no word for, as the protocol spells them."""


def whole_milliseconds(moment: datetime) -> datetime:
    """As it is shown. Cut off, not rounded: a moment must not be shown later than it was, or "after what I saw last" misses events."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
