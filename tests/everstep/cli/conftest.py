"""The real program against a real API."""

from __future__ import annotations

from tests.live import api, bearer, look, place, work

__all__ = ["api", "bearer", "look", "place", "work"]
