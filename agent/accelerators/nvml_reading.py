"""One NVIDIA device, question by question: each may be one that it does not support, or that it cannot answer now."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent.accelerators.readings import Reading
from everstep.hardware import Device

_MOST_LINKS = 18
_MIB = 2**20
_UNSUPPORTED = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_INVALID_ARGUMENT",
)
_LINK_ERRORS = ("REPLAY", "RECOVERY", "CRC_FLIT", "CRC_DATA")


class Silent(Exception):
    """The device does not support the question."""


@dataclass
class Asked:
    """A device that is asked. ``failed`` names the questions that it supports and could not answer."""

    nvml: Any
    handle: Any
    failed: list[str] = field(default_factory=list)

    def value(self, question: str, *arguments: Any) -> Any:
        """Raises Silent, or NVMLError: the device is lost."""
        function = getattr(self.nvml, question, None)
        if function is None:
            raise Silent
        try:
            return function(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            number = getattr(error, "value", None)
            if number == self.nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            if number not in {getattr(self.nvml, name, None) for name in _UNSUPPORTED}:
                self.failed.append(question)
            raise Silent from error

    def number(self, question: str, *arguments: Any) -> int:
        return int(self.value(question, *arguments))

    def text(self, question: str, *arguments: Any) -> str:
        """Older libraries answer in bytes."""
        value = self.value(question, *arguments)
        return value.decode() if isinstance(value, bytes) else str(value)


def device_of(asked: Asked, index: int) -> Device:
    """Raises Silent or NVMLError: not even its name can be had."""
    name = asked.text("nvmlDeviceGetUUID")
    model, memory_mib, pci = "NVIDIA", 0, None
    with suppress(Silent):
        model = asked.text("nvmlDeviceGetName")
    with suppress(Silent):
        memory_mib = int(asked.value("nvmlDeviceGetMemoryInfo").total) // _MIB
    with suppress(Silent):
        address = asked.value("nvmlDeviceGetPciInfo").busId
        pci = address.decode() if isinstance(address, bytes) else str(address)
    return Device(name, index, model, memory_mib, pci=pci, links=_links_up(asked))


def reading_of(asked: Asked, device: Device, links_lost: int) -> Reading:
    """``links_lost``: how many of its links are down that were up before. A device that is lost on the way says only that."""
    gauges: dict[str, float] = {"links_up": float(device.links)}
    counts: dict[str, int] = {"links_lost": links_lost}
    try:
        _gauges(asked, gauges)
        _errors(asked, counts)
        _repairs(asked, counts)
        _throttling(asked, counts)
        _link_errors(asked, counts, device.links)
    except asked.nvml.NVMLError:
        return Reading(device, counts={"lost": 1})
    unread = f"device {device.index} does not answer {', '.join(sorted(set(asked.failed)))}" if asked.failed else ""
    return Reading(device, gauges, counts, unread)


def _gauges(asked: Asked, gauges: dict[str, float]) -> None:
    with suppress(Silent):
        memory = asked.value("nvmlDeviceGetMemoryInfo")
        gauges["memory_used_bytes"] = float(memory.used)
        gauges["memory_total_bytes"] = float(memory.total)
    with suppress(Silent):
        gauges["utilization_ratio"] = float(asked.value("nvmlDeviceGetUtilizationRates").gpu) / 100
    with suppress(Silent):
        gauges["power_watts"] = asked.number("nvmlDeviceGetPowerUsage") / 1000
    with suppress(Silent):
        gauges["temperature_celsius"] = float(asked.number("nvmlDeviceGetTemperature", asked.nvml.NVML_TEMPERATURE_GPU))


def _errors(asked: Asked, counts: dict[str, int]) -> None:
    nvml = asked.nvml
    kinds = {"corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
    places = {"dram": nvml.NVML_MEMORY_LOCATION_DRAM, "sram": nvml.NVML_MEMORY_LOCATION_SRAM}
    for kind, kind_number in kinds.items():
        for place, place_number in places.items():
            with suppress(Silent):
                counts[f"ecc_{kind}_{place}"] = asked.number(
                    "nvmlDeviceGetMemoryErrorCounter", kind_number, nvml.NVML_VOLATILE_ECC, place_number
                )
        with suppress(Silent):
            counts[f"ecc_aggregate_{kind}"] = asked.number("nvmlDeviceGetTotalEccErrors", kind_number, nvml.NVML_AGGREGATE_ECC)
    with suppress(Silent):
        counts["sram_threshold"] = int(bool(_sram_status(asked).bThresholdExceeded))


def _repairs(asked: Asked, counts: dict[str, int]) -> None:
    """A device either remaps rows or retires pages. Only on the latter does an uncorrectable error speak for itself."""
    try:
        corrected, uncorrected, pending, failure = asked.value("nvmlDeviceGetRemappedRows")
        counts["remapped_rows"] = int(corrected) + int(uncorrected)
        counts["remap_pending"], counts["remap_failure"] = int(bool(pending)), int(bool(failure))
    except Silent:
        if "ecc_uncorrected_dram" in counts:
            counts["ecc_uncorrected_unmapped"] = counts.pop("ecc_uncorrected_dram")
        with suppress(Silent):
            counts["retirement_pending"] = asked.number("nvmlDeviceGetRetiredPagesPendingStatus")
        with suppress(Silent):
            cause = asked.nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
            counts["retired_pages"] = len(asked.value("nvmlDeviceGetRetiredPages", cause))
    with suppress(Silent):
        counts["repair_pending"] = int(any(asked.value("nvmlDeviceGetRepairStatus")))
    with suppress(Silent):
        counts["unrepairable"] = int(bool(asked.value("nvmlDeviceGetUnrepairableMemoryFlag_v1")))


def _throttling(asked: Asked, counts: dict[str, int]) -> None:
    nvml = asked.nvml
    with suppress(Silent):
        reasons = asked.number("nvmlDeviceGetCurrentClocksEventReasons")
        thermal = nvml.nvmlClocksEventReasonSwThermalSlowdown | nvml.nvmlClocksEventReasonHwThermalSlowdown
        power = nvml.nvmlClocksEventReasonSwPowerCap | nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
        counts["throttled_thermal"] = int(bool(reasons & thermal))
        counts["throttled_power"] = int(bool(reasons & power))
        counts["throttled_hardware"] = int(bool(reasons & nvml.nvmlClocksEventReasonHwSlowdown))


def _links_up(asked: Asked) -> int:
    up = 0
    for link in range(_MOST_LINKS):
        try:
            up += bool(asked.number("nvmlDeviceGetNvLinkState", link))
        except Silent:
            break
    return up


def _link_errors(asked: Asked, counts: dict[str, int], links: int) -> None:
    found = 0
    for link in range(links):
        for name in _LINK_ERRORS:
            with suppress(Silent):
                found += asked.number("nvmlDeviceGetNvLinkErrorCounter", link, getattr(asked.nvml, f"NVML_NVLINK_ERROR_DL_{name}"))
    if links:
        counts["link_errors"] = found


def _sram_status(asked: Asked) -> Any:
    """The library fills in a structure of the caller's. Raises Silent."""
    shape = getattr(asked.nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if shape is None:
        raise Silent
    status = shape()
    asked.value("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
    return status
