"""Writes an answer through the service model's output shape.

Members that the installed model does not have are left out, and so are absent ones: ``null`` breaks strict SDKs.
"""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Any

from botocore.model import ListShape, MapShape, Shape, StructureShape


def render(shape: Shape | None, value: Any) -> Any:
    """The value as JSON; timestamps become seconds since the epoch, in milliseconds' precision."""
    if shape is None:
        return {}
    if isinstance(shape, StructureShape) and shape.is_document_type:
        return value
    if isinstance(shape, StructureShape):
        return {name: render(member, value[name]) for name, member in shape.members.items() if value.get(name) is not None}
    if isinstance(shape, ListShape):
        return [render(shape.member, item) for item in value]
    if isinstance(shape, MapShape):
        return {key: render(shape.value, item) for key, item in value.items()}
    if isinstance(value, datetime):
        return round(whole_milliseconds(value).timestamp(), 3)
    return _BEYOND_JSON[str(value)] if isinstance(value, float) and not isfinite(value) else value


_BEYOND_JSON = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Numbers that JSON has no word for, as the protocol spells them."""


def whole_milliseconds(moment: datetime) -> datetime:
    """As it is shown. Cut off, not rounded: a moment must not be shown later than it was, or "after what I saw last" misses events."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
