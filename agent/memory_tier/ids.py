"""The one place of the memory tier that makes up names: of segments, and of their stamps."""

from __future__ import annotations

import os


def fresh() -> str:
    """16 hex digits that nothing on this machine has been called by."""
    return os.urandom(8).hex()
