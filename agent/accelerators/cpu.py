"""A host without accelerators: healthy, and with nothing to tell, unless its provider says that it should have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.accelerators.base import Refusal, Sample, Seen
from everstep.examination import Finding
from everstep.hardware import Device, HardwareFault, HardwareState


class Cpu:
    """``lacking``: how many devices there should be."""

    vendor = "cpu"

    def __init__(self, lacking: int = 0) -> None:
        self._lacking = lacking

    def detect(self) -> Seen:
        if self._lacking:
            says = f"{self._lacking} accelerators should be here, and no driver knows of any; is one installed?"
            return Seen((), HardwareState.UNKNOWN, says)
        return Seen((), HardwareState.HEALTHY)

    def expected(self, instance_type: str) -> int | None:
        """As the provider says; a type is no promise here."""
        del instance_type
        return self._lacking or None

    def poll(self) -> Sequence[Sample]:
        return ()

    def events(self) -> Sequence[HardwareFault]:
        return ()

    def told(self) -> None:
        """There was nothing to tell."""

    def diagnose(self, level: int) -> Sequence[Finding]:
        del level
        return ()

    def partition(self, layout: Mapping[str, str]) -> None:
        del layout
        raise Refusal(_NONE)

    def env(self, devices: Sequence[Device]) -> Mapping[str, str]:
        del devices
        return {}

    def reset(self, device: Device) -> None:
        del device
        raise Refusal(_NONE)

    def close(self) -> None:
        """Nothing was started."""


_NONE = "this host has no accelerators"
