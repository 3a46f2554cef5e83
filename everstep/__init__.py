"""Everstep: training that goes on when nodes do not.

Importing this package imports neither torch nor anything else outside of the standard library; the names of the training runtime are
loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from . import data as data
    from .checkpoint.reader import TieredReader
    from .checkpoint.tiers import Tiers
    from .checkpoint.writer import TieredWriter
    from .client import client
    from .resilience import Checkpointer, LossPolicy, Run, State, init, resilient
    from .steps import report_step

__all__ = [
    "Checkpointer",
    "LossPolicy",
    "Run",
    "State",
    "TieredReader",
    "TieredWriter",
    "Tiers",
    "client",
    "init",
    "report_step",
    "resilient",
]

_HOMES = dict.fromkeys(__all__, "everstep.resilience") | {
    "TieredReader": "everstep.checkpoint.reader",
    "TieredWriter": "everstep.checkpoint.writer",
    "Tiers": "everstep.checkpoint.tiers",
    "client": "everstep.client",
    "report_step": "everstep.steps",
}


_PARTS = ("checkpoint", "data")
"""Subpackages that are there after ``import everstep``, as the documents write them."""


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"everstep.{name}")
    if name not in _HOMES:
        message = f"module 'everstep' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(_HOMES[name]), name)
