"""What all members of a generation have laid, as one text that each of them is told. Part of ``everstep.protocol``.

By columns: members say mostly the same things, and what all say alike is said once.

Standard library only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

_LEVEL = 1
"""The quickest: everybody waits for it."""


def pack(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """JSON objects with the same keys, in order; what is equal, as 1 and 1.0 are, is told as what the first has. Raises ValueError when keys differ."""
    first: Mapping[str, Any] = rows[0] if rows else {}
    if any(row.keys() != first.keys() for row in rows):
        message = "members have laid objects with different keys"
        raise ValueError(message)
    columns = {key: [row[key] for row in rows] for key in first}
    same = {key: column[0] for key, column in columns.items() if all(value == column[0] for value in column)}
    each = {key: column for key, column in columns.items() if key not in same}
    told = {"count": len(rows), "same": same, "each": each}
    return zlib.compress(json.dumps(told, separators=(",", ":")).encode(), _LEVEL)


def unpack(packed: bytes) -> list[dict[str, Any]]:
    """The rows; what all have alike is one and the same object in them. Raises ValueError."""
    try:
        told = json.loads(zlib.decompress(packed))
        same, each = told["same"], told["each"]
        rows = [{**same, **dict(zip(each, values, strict=True))} for values in zip(*each.values(), strict=True)] if each else []
        return rows or [dict(same) for _ in range(told["count"])]
    except (zlib.error, KeyError, TypeError, AttributeError) as error:
        message = f"not what members have laid: {error!r}"
        raise ValueError(message) from error
