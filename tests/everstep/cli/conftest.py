"""The real program against a real API."""

from __future__ import annotations

from tests.live import api, bearer, hosted, look, place, work

__all__ = ["api", "bearer", "hosted", "look", "place", "work"]
