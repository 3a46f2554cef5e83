"""Names that are drawn; nothing else in the library draws any."""

from __future__ import annotations

import secrets


def new_save_id() -> str:
    """Names one save of one step: shards of different saves are never taken for each other's."""
    return secrets.token_hex(8)
