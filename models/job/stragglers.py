"""What is done about ranks that hold the others up, as a job's accepted file says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

TELL: Final = "tell"
"""It is told, and nothing is done about it: also what a job file means that does not say."""
REPLACE: Final = "replace"


def are_replaced(spec: Mapping[str, Any]) -> bool:
    """Whether a spare that stands ready takes such a rank over."""
    return spec.get("stragglers") == REPLACE
