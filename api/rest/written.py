"""Answers of SageMaker's operations as REST has them: the members of the service model's output, times as RFC 3339 text in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from api.aws.render import whole_milliseconds


def written(shape: Any, value: Any) -> Any:
    """The value as JSON, through the model's shape: what the model does not have, and what is absent, is left out."""
    match shape.type_name:
        case "structure":
            return {name: written(member, value[name]) for name, member in shape.members.items() if value.get(name) is not None}
        case "list":
            return [written(shape.member, item) for item in value]
        case "map":
            return {key: written(shape.value, item) for key, item in value.items()}
        case "timestamp":
            return moment(value)
    return value


def moment(at: datetime) -> str:
    """In milliseconds' precision, cut off as in AWS's JSON: what was seen last is not after itself."""
    return whole_milliseconds(at).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
