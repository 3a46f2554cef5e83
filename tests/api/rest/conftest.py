"""An API process, for real."""

from __future__ import annotations

from tests.live import api, api_process, bearer, look, place, work

__all__ = ["api", "api_process", "bearer", "look", "place", "work"]
