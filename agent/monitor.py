"""Watches the node's accelerators and tells the control plane of what has changed, and of each fault as it is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from everstep.protocol import Report


class Monitor:
    """``report`` must not block. ``environment`` chooses the adapters (``EVERSTEP_ACCELERATORS``) and their sources."""

    def __init__(self, *, node_id: str, state_dir: Path, environment: Mapping[str, str], report: Callable[[Report], None]) -> None:
        self._node_id = node_id
        self._state_dir = state_dir
        self._environment = environment
        self._report = report

    async def start(self) -> None:
        """Begins to watch. Returns at once."""

    async def stop(self) -> None:
        """Ends what was started to watch."""
