"""Accelerators that are made up, and speak as the real ones do."""

from __future__ import annotations

from agent.accelerators.script import Script

__all__ = ["Script"]
