"""Reads a request against the service model: everything that is wrong is told at once, in AWS's words.

botocore checks minimums before it sends; enums, patterns, maximums and booleans sent for integers reach the server and are caught here.
A value of the wrong JSON type ends the reading (``Unreadable``); violated constraints are collected (``Violated``).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from botocore.model import ListShape, MapShape, Shape, StructureShape

from api.aws.body import Unreadable, is_storable, json_type
from api.aws.patterns import is_match

_SHOWN = 256
"""Characters of a refused value that the message repeats."""
MOST_TOLD = 1000
"""Violations that a message tells; of the rest, how many there are. A body has room for millions."""
_UNTOLD = ""
"""Stands for a violation that comes after so many others that nobody will read it."""
_HINTED = 100
"""Violations after which no unknown member's neighbours are looked for: that costs a thousand times what telling it does."""
_INTEGER_BITS = {"integer": 31, "long": 63}


class Violated(Exception):
    """The request breaks constraints of the model; ``violations`` in the order of the model's members, the first thousand of them."""

    def __init__(self, violations: list[str]) -> None:
        self.violations = tuple(violations[:MOST_TOLD])
        count = len(violations)
        told = [*self.violations, *([f"and {count - MOST_TOLD} more"] if count > MOST_TOLD else [])]
        super().__init__(f"{count} validation error{'' if count == 1 else 's'} detected: {'; '.join(told)}")


def read_members(shape: StructureShape | None, wire: dict[str, Any]) -> dict[str, Any]:
    """The request's members, by their wire names, timestamps as aware datetimes, nulls left out.

    Raises:
        Unreadable: a member has the wrong JSON type.
        Violated: constraints of the model do not hold.
    """
    members, violations = read_all(shape, wire)
    if violations:
        raise Violated(violations)
    return members


def read_all(shape: StructureShape | None, wire: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """As ``read_members``, but the violations are given back, for those who have more to say. Raises Unreadable."""
    if shape is None:
        return {}, []
    violations: list[str] = []
    return _structure(shape, wire, "", violations), violations


def _read(shape: Shape, value: Any, path: str, violations: list[str]) -> Any:
    return _READERS[shape.type_name](shape, value, path, violations)


def _structure(shape: StructureShape, value: Any, path: str, violations: list[str]) -> dict[str, Any]:
    given = {name: item for name, item in _expect(value, dict, path).items() if item is not None}
    required = set(shape.metadata.get("required", ()))
    members: dict[str, Any] = {}
    for name, member in shape.members.items():
        if name in given:
            members[name] = _read(member, given[name], below(path, name), violations)
        elif name in required:
            violations.append(violation(None, below(path, name), "Member must not be null"))
    unknown = [name for name in given if name not in shape.members]
    for name in unknown[:MOST_TOLD]:
        violations.append(_unknown(shape, name, given[name], path, has_hint=len(violations) < _HINTED))
    violations += [_UNTOLD] * (len(unknown) - MOST_TOLD)
    if shape.is_tagged_union and len(given) != 1:
        names = ", ".join(shape.members)
        violations.append(violation(value, path, f"Member must have exactly one of its members set: [{names}]"))
    return members


def _list(shape: ListShape, value: Any, path: str, violations: list[str]) -> list[Any]:
    """What is beyond the maximum is refused unread: each item may break more constraints than it has letters."""
    items = _expect(value, list, path)
    _check_length(shape, items, path, violations)
    read = []
    for place, item in enumerate(islice(items, shape.metadata.get("max")), start=1):
        where = f"{path}.{place}.member"
        if item is None:
            violations.append(violation(None, where, "Member must not be null"))
        else:
            read.append(_read(shape.member, item, where, violations))
    return read


def _map(shape: MapShape, value: Any, path: str, violations: list[str]) -> dict[str, Any]:
    """Of its keys all that is wrong is one violation, which shows the map once. What is beyond the maximum is refused unread."""
    entries = _expect(value, dict, path)
    _check_length(shape, entries, path, violations)
    read: dict[str, Any] = {}
    broken: list[str] = []
    for key, item in islice(entries.items(), shape.metadata.get("max")):
        _read(shape.key, key, path, broken)
        where = f"{path}.{key}.member"
        if item is None:
            violations.append(violation(None, where, "Member must not be null"))
        else:
            read[key] = _read(shape.value, item, where, violations)
    if broken:
        constraints = ", ".join(dict.fromkeys(text.rpartition(" failed to satisfy constraint: ")[2] for text in broken))
        violations.append(violation(value, path, f"Map keys must satisfy constraint: [{constraints}]"))
    return read


def _string(shape: Shape, value: Any, path: str, violations: list[str]) -> str:
    text: str = _expect(value, str, path)
    if not is_storable(text):
        violations.append(violation(text, path, "Member must not contain U+0000 or unpaired surrogates"))
        return text
    enum = getattr(shape, "enum", ())
    if enum and text not in enum:
        violations.append(violation(text, path, f"Member must satisfy enum value set: [{', '.join(enum)}]"))
    pattern = shape.metadata.get("pattern")
    # A text beyond its maximum is not matched as well: some patterns take quadratic time.
    if _check_length(shape, text, path, violations) and pattern and not is_match(pattern, text):
        violations.append(violation(text, path, f"Member must satisfy regular expression pattern: {pattern}"))
    return text


def _integer(shape: Shape, value: Any, path: str, violations: list[str]) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(value, "Integer", path)
    limit = 1 << _INTEGER_BITS[shape.type_name]
    if not -limit <= value < limit:
        message = f"Value at {path!r} is out of the range of a {shape.type_name}"
        raise Unreadable(message)
    _check_range(shape, value, path, violations)
    return value


def _float(shape: Shape, value: Any, path: str, violations: list[str]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(value, "Float", path)
    number = _finite(value, path)
    _check_range(shape, number, path, violations)
    return number


def _boolean(_shape: Shape, value: Any, path: str, _violations: list[str]) -> bool:
    flag: bool = _expect(value, bool, path)
    return flag


def _timestamp(_shape: Shape, value: Any, path: str, _violations: list[str]) -> datetime:
    """Seconds since the epoch as AWS's SDKs send them; also as text, and ISO 8601 (UTC where no offset is given)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong_type(value, "Timestamp", path)
    try:
        return datetime.fromtimestamp(_finite(float(value), path), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        moment = datetime.fromisoformat(str(value))
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        message = f"Value {_shown(value)} at {path!r} is no timestamp: send seconds since the epoch, or ISO 8601"
        raise Unreadable(message) from error


_READERS: dict[str, Callable[[Any, Any, str, list[str]], Any]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
    "string": _string,
    "integer": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "boolean": _boolean,
    "timestamp": _timestamp,
}


def _expect(value: Any, kind: type, path: str) -> Any:
    if not isinstance(value, kind):
        names = {dict: "Structure", list: "List", str: "String", bool: "Boolean"}
        raise _wrong_type(value, names[kind], path)
    return value


def _wrong_type(value: Any, wanted: str, path: str) -> Unreadable:
    return Unreadable(f"{json_type(value)} value at {path or 'the request'!r} cannot be converted to {wanted}")


def _finite(value: float, path: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        message = f"Value at {path!r} is out of range"
        raise Unreadable(message)
    return number


def _check_length(shape: Shape, value: Any, path: str, violations: list[str]) -> bool:
    """Whether the maximum holds."""
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and len(value) < least:
        violations.append(violation(value, path, f"Member must have length greater than or equal to {least}"))
    if most is not None and len(value) > most:
        violations.append(violation(value, path, f"Member must have length less than or equal to {most}"))
        return False
    return True


def _check_range(shape: Shape, value: float, path: str, violations: list[str]) -> None:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and value < least:
        violations.append(violation(value, path, f"Member must have value greater than or equal to {least}"))
    if most is not None and value > most:
        violations.append(violation(value, path, f"Member must have value less than or equal to {most}"))


def _unknown(shape: StructureShape, name: str, value: Any, path: str, *, has_hint: bool) -> str:
    near = difflib.get_close_matches(name, shape.members, n=1) if has_hint else []
    hint = f"; did you mean {near[0]}?" if near else ""
    return violation(value, below(path, name), f"Member must be one that {shape.name} has{hint}")


def violation(value: Any, path: str, constraint: str) -> str:
    return f"Value {'null' if value is None else _shown(value)} at {path!r} failed to satisfy constraint: {constraint}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\u0000")
    return f"'{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}'"


def below(path: str, name: str) -> str:
    lowered = name[:1].lower() + name[1:]
    return f"{path}.{lowered}" if path else lowered
