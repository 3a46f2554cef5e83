"""An API process and agents, for real."""

from __future__ import annotations

from tests.live import api, api_process, bearer, hosted, look, place, work

__all__ = ["api", "api_process", "bearer", "hosted", "look", "place", "work"]
