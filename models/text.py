"""Text that other programs wrote, made storable.

Postgres takes neither NUL nor half a surrogate pair, and its JSON takes no NaN. A log tail may hold any of them; if it were refused, the
report that carries it, say of a process's end, would be lost with it.
"""

from __future__ import annotations

import json
import math
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def storable(text: str) -> str:
    """The text with U+FFFD, or ``?``, in place of what Postgres cannot hold."""
    if "\x00" in text:
        text = text.replace("\x00", _REPLACEMENT)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def dumps(value: Any) -> str:
    """JSON that Postgres takes; a float that JSON has no word for becomes null."""
    return json.dumps(_storable_json(value), allow_nan=False)


def _storable_json(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {storable(str(key)): _storable_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_storable_json(item) for item in value]
        case _:
            return value
