"""What a node's agent says of its accelerators: part of ``everstep.protocol``, and as free of anything but the standard library.

A ``HardwareReport`` is whole and level-triggered: the newest one replaces the one before. A ``HardwareFault`` is one occurrence, told once and never
taken back; what follows from it is the control plane's to decide, by its class and by what the node has had before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everstep.wire import Wire


class FaultClass(StrEnum):
    """What a vendor's code stands for, by the agent's ``faults.toml``. Both vendors share what follows from it."""

    APPLICATION = "application"
    """The user's program is to blame: never costs a node."""
    TRANSIENT = "transient"
    """The process that it struck must start anew; the device is as good as before."""
    REBOOT = "reboot"
    """Cleared by starting the host anew; the same once more within the window calls for another host."""
    REPLACE = "replace"
    """The host must go."""
    UNKNOWN = "unknown"
    """No line of the table: kept raw, and treated as the policy says of unknown ones; never as healthy."""


class HardwareState(StrEnum):
    """Of a device, and of all of a node's together."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"
    """It cannot be told now: a monitor that has died, or says what cannot be read."""


@dataclass(frozen=True)
class Device(Wire):
    """One accelerator. ``id`` is its vendor's name for it (a UUID), ``index`` its place on the host, ``pci`` its bus address."""

    id: str
    index: int
    model: str
    memory_mib: int
    cores: int = 1
    pci: str | None = None
    links: int = 0
    state: HardwareState = HardwareState.HEALTHY


@dataclass(frozen=True)
class HardwareReport(Wire):
    """All accelerators of the node as they are now; told when that changes. ``vendor``: ``nvidia``, ``neuron``, or ``cpu`` where there are none.

    ``expected`` is how many devices the instance type has, None where nobody knows. ``says`` is for a person.
    """

    vendor: str
    state: HardwareState
    devices: tuple[Device, ...]
    says: str
    at: float
    expected: int | None = None
    kind: str = "hardware"


@dataclass(frozen=True)
class HardwareFault(Wire):
    """A fault as it was seen. ``id`` names the occurrence, so that telling it twice is telling it once.

    ``code`` is the vendor's, with its kind: ``xid:74``, ``sxid:12028``, ``ecc:uncorrectable``, ``remap:failure``, ``neuron:HBM_UNCORRECTABLE_ERROR``,
    ``count`` for a device that is missing. ``type`` and ``reason`` are HyperPod's words for it (``NvidiaErrorReboot``, ``XidHardwareFailure``).
    ``device`` is a ``Device.id``, if it is known; ``pid`` the process that the driver names; ``evidence`` the raw line or reading, at most 1 KiB.
    """

    id: str
    vendor: str
    code: str
    fault_class: FaultClass
    type: str
    reason: str
    evidence: str
    at: float
    device: str | None = None
    pid: int | None = None
    kind: str = "hardware_fault"
