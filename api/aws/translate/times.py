"""Bounds in time. The wire shows milliseconds and the database keeps microseconds; a bound means what the wire shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from api.aws.render import whole_milliseconds

_WITHIN = timedelta(microseconds=999)
_LAST = datetime.max.replace(tzinfo=UTC) - _WITHIN
"""Past it there is no later moment to round up to, and nothing to find."""


def read_after(members: Mapping[str, Any], name: str) -> datetime | None:
    """What is shown with this very time is not after it."""
    bound: datetime | None = members.get(name)
    return None if bound is None else whole_milliseconds(bound) + _WITHIN


def read_before(members: Mapping[str, Any], name: str) -> datetime | None:
    """What is shown with an earlier time is before it."""
    bound: datetime | None = members.get(name)
    return None if bound is None else whole_milliseconds(min(bound, _LAST) + _WITHIN)
