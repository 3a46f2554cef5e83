"""Notices that this node is about to go: watched for at the provider, told to the control plane, and to what trains here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from everstep.notices import Evacuation, SpotNotice
from everstep.protocol import Report


class Notices:
    """``tell`` hands an evacuation to every training process of the node, those that start later included."""

    def __init__(
        self,
        *,
        state_dir: Path,
        environment: Mapping[str, str],
        tell: Callable[[Evacuation], None],
        report: Callable[[Report], None],
    ) -> None:
        self._state_dir = state_dir
        self._environment = environment
        self._tell = tell
        self._report = report

    async def start(self) -> None:
        """Begins to watch the instance's metadata, if ``EVERSTEP_IMDS_URL`` says where that is. Returns at once."""

    async def stop(self) -> None:
        """Ends the watch."""

    def announce(self, notice: SpotNotice) -> None:
        """A notice that was made on purpose (``everstep fault spot-notice``) goes the way of a real one."""
        self._report(notice)

    def hear(self, told: Evacuation) -> None:
        """The control plane's word."""
        self._tell(told)
