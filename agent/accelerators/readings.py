"""What is read off a device now and then, under names that all vendors share, and the metrics that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.accelerators.base import Sample
from everstep.hardware import Device

GAUGES: Mapping[str, str] = {
    "utilization_ratio": "accel_utilization_ratio",
    "memory_used_bytes": "accel_memory_used_bytes",
    "memory_total_bytes": "accel_memory_total_bytes",
    "power_watts": "accel_power_watts",
    "temperature_celsius": "accel_temperature_celsius",
    "links_up": "accel_links_up",
}
"""A gauge's name → its metric."""


@dataclass(frozen=True)
class Count:
    """``code`` is the fault that a value above 0 stands for, by vendor; other vendors' devices only show it."""

    metric: str
    labels: Mapping[str, str]
    code: Mapping[str, str] = field(default_factory=dict)


_ECC = "accel_ecc_errors_total"
_REPAIR = "accel_repair_state"

COUNTS: Mapping[str, Count] = {
    "ecc_corrected_dram": Count(_ECC, {"type": "corrected", "location": "dram"}),
    "ecc_corrected_sram": Count(_ECC, {"type": "corrected", "location": "sram"}),
    # On an NVIDIA device that remaps rows, an uncorrectable error may have been contained (Xid 94): Xids and the remapper's state speak for it.
    "ecc_uncorrected_dram": Count(_ECC, {"type": "uncorrected", "location": "dram"}, {"neuron": "ecc:uncorrectable"}),
    "ecc_uncorrected_unmapped": Count(_ECC, {"type": "uncorrected", "location": "dram"}, {"nvidia": "ecc:uncorrectable"}),
    "ecc_uncorrected_sram": Count(_ECC, {"type": "uncorrected", "location": "sram"}, {"neuron": "ecc:sram_uncorrectable"}),
    "ecc_aggregate_corrected": Count("accel_ecc_errors_lifetime", {"type": "corrected"}),
    "ecc_aggregate_uncorrected": Count("accel_ecc_errors_lifetime", {"type": "uncorrected"}),
    "sram_threshold": Count(_REPAIR, {"what": "sram_threshold"}, {"nvidia": "ecc:sram_threshold"}),
    "remapped_rows": Count("accel_remapped_rows", {}),
    "remap_pending": Count(_REPAIR, {"what": "remap_pending"}, {"nvidia": "remap:pending"}),
    "remap_failure": Count(_REPAIR, {"what": "remap_failure"}, {"nvidia": "remap:failure"}),
    "repair_pending": Count(_REPAIR, {"what": "repair_pending"}, {"nvidia": "repair:pending"}),
    "unrepairable": Count(_REPAIR, {"what": "unrepairable"}, {"nvidia": "memory:unrepairable"}),
    "retired_pages": Count("accel_retired_pages", {}),
    "retirement_pending": Count(_REPAIR, {"what": "retirement_pending"}, {"nvidia": "retire:pending"}),
    "link_errors": Count("accel_link_errors_total", {}),
    "links_lost": Count("accel_links_lost", {}, {"nvidia": "link:down"}),
    "lost": Count("accel_lost", {}, {"nvidia": "lost"}),
    "throttled_thermal": Count("accel_throttled", {"reason": "thermal"}),
    "throttled_power": Count("accel_throttled", {"reason": "power"}),
    "throttled_hardware": Count("accel_throttled", {"reason": "hardware"}),
}
"""A counter's or a flag's name → what it is."""


@dataclass(frozen=True)
class Reading:
    """One device. What could not be read is missing. ``unread`` says what should have been there; "" when all was."""

    device: Device
    gauges: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    unread: str = ""


def samples(readings: Sequence[Reading]) -> list[Sample]:
    """A name that the tables do not have is left out: a script may show anything."""
    found = []
    for reading in readings:
        device = reading.device.id
        found += [Sample(GAUGES[name], value, device) for name, value in reading.gauges.items() if name in GAUGES]
        found += [
            Sample(COUNTS[name].metric, value, device, COUNTS[name].labels)
            for name, value in reading.counts.items()
            if name in COUNTS
        ]
    return found


def codes(reading: Reading, vendor: str) -> dict[str, int]:
    """The faults that the counters stand for now, each with its counter's value."""
    found = {}
    for name, value in reading.counts.items():
        code = COUNTS[name].code.get(vendor) if name in COUNTS else None
        if code is not None and value > 0:
            found[code] = value
    return found
