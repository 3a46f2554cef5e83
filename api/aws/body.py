"""From bytes to a JSON object, strictly. What passes here can be stored by Postgres and written back as JSON."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

_HALF_A_PAIR: Final = re.compile("[\ud800-\udfff]")


class Unreadable(Exception):
    """The body is not what the protocol allows: not JSON, not an object, or a member of the wrong JSON type."""


def read_object(raw: bytes) -> dict[str, Any]:
    """Reads a JSON object. An empty body is an empty object, as the AWS SDKs have it.

    Raises:
        Unreadable: malformed, not UTF-8, duplicate members, not-a-number constants, characters that cannot be stored.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_members, parse_constant=_refuse_constant)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        message = f"The request body is not JSON: {error}"
        raise Unreadable(message) from error
    if not isinstance(value, dict):
        message = f"The request body must be a JSON object, not {json_type(value)}"
        raise Unreadable(message)
    return value


def json_type(value: Any) -> str:
    """What JSON calls the type of a value."""
    for types, name in _NAMES:
        if isinstance(value, types):
            return name
    return type(value).__name__


def is_storable(text: str) -> bool:
    """Postgres stores no NUL and no half of a surrogate pair; JSON can carry both."""
    return "\x00" not in text and _HALF_A_PAIR.search(text) is None


_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "Boolean"),
    (int, "Integer"),
    (float, "Float"),
    (str, "String"),
    (list, "List"),
    (dict, "Structure"),
    (type(None), "Null"),
)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            message = f"member {name!r} is given twice"
            raise ValueError(message)
        members[name] = value
    return members


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is no JSON number"
    raise ValueError(message)
