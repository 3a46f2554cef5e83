"""One interface to all accelerators: what a node has, what it should have, how it fares, what has gone wrong.

An adapter reads, and decides nothing: codes get their class from ``faults.toml`` (``faults``), and what follows from a class is the control plane's
business. No method blocks for long, and none raises for what a device does: what cannot be read is ``HardwareState.UNKNOWN``, never healthy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everstep.examination import Finding
from everstep.hardware import Device, HardwareFault, HardwareState


@dataclass(frozen=True)
class Sample:
    """A reading under its normalised name (``accel_ecc_errors_total`` …); ``labels`` besides vendor, device and node."""

    name: str
    value: float
    device: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What ``detect`` found. ``says`` tells a person why the state is not healthy; "" if it is."""

    devices: tuple[Device, ...]
    state: HardwareState
    says: str = ""


@dataclass(frozen=True)
class Refusal(Exception):
    """The accelerator cannot do what was asked; the message says why, and what can be done."""

    why: str

    def __str__(self) -> str:
        return self.why


class Accelerators(Protocol):
    """All accelerators of one vendor on this host."""

    @property
    def vendor(self) -> str:
        """``nvidia``, ``neuron``, ``cpu``."""
        ...

    def detect(self) -> Seen:
        """What is there now. Devices in the order of their index."""
        ...

    def expected(self, instance_type: str) -> int | None:
        """How many devices a host of that type has; None if this table does not know it."""
        ...

    def poll(self) -> Sequence[Sample]:
        """Readings of now."""
        ...

    def events(self) -> Sequence[HardwareFault]:
        """What has gone wrong since the last call; each occurrence once."""
        ...

    def told(self) -> None:
        """Everything that ``events`` has returned has arrived: it need not be told again by the next start of the agent."""
        ...

    def diagnose(self, level: int) -> Sequence[Finding]:
        """Burns and checks every device: 1 for seconds, 2 for a minute, 3 and 4 for as long as the vendor's tools take. Blocks: run it in a thread."""
        ...

    def partition(self, layout: Mapping[str, str]) -> None:
        """Cuts devices (by id) into partitions of a profile. Raises Refusal."""
        ...

    def env(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """The variables by which a process sees these devices and no others."""
        ...

    def reset(self, device: Device) -> None:
        """Raises Refusal."""
        ...

    def close(self) -> None:
        """Ends whatever was started to read."""
        ...
