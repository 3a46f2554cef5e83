"""Checkpoints that cost next to nothing and can be loaded: memory of this node, memory of its peers, an object store.

Importing this package imports neither torch nor anything else outside of the standard library; its names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .direct import Saving, async_save, load, save
    from .reader import TieredReader
    from .tiers import Tiers
    from .writer import TieredWriter

_HOMES = {
    "Saving": "direct",
    "TieredReader": "reader",
    "TieredWriter": "writer",
    "Tiers": "tiers",
    "async_save": "direct",
    "load": "direct",
    "save": "direct",
}

__all__ = ["Saving", "TieredReader", "TieredWriter", "Tiers", "async_save", "load", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module 'everstep.checkpoint' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(f"everstep.checkpoint.{_HOMES[name]}"), name)
