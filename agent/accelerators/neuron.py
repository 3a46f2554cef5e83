"""AWS's Trainium and Inferentia devices: ``neuron-ls`` and the driver's tree say what is there, ``neuron-monitor`` and the tree how it fares.

Where ``neuron-monitor`` is installed it is relied on: while it is down, or talks nonsense, nothing here is healthy.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.accelerators.base import Refusal
from agent.accelerators.devices import Unreadable, WatchedDevices
from agent.accelerators.kernel_lines import NEURON
from agent.accelerators.neuron_monitor import NeuronMonitor
from agent.accelerators.neuron_sources import Listed, NeuronLs, Sysfs
from agent.accelerators.readings import Reading
from agent.accelerators.roll import Roll
from agent.accelerators.watch import Watch
from everstep.examination import Finding
from everstep.hardware import Device

log = logging.getLogger(__name__)

TOOLS = "/opt/aws/neuron/bin"
PATIENCE_S = 120.0
"""How long a device may take to show itself after the host's start."""
_LIST_EVERY_S = 30.0
_SPEAKS_WITHIN_S = 20.0
_COUNTERS = {
    "mem_ecc_corrected": "ecc_corrected_dram",
    "mem_ecc_uncorrected": "ecc_uncorrected_dram",
    "sram_ecc_corrected": "ecc_corrected_sram",
    "sram_ecc_uncorrected": "ecc_uncorrected_sram",
}
"""A counter's name in the driver and in neuron-monitor → ours."""


class Neuron(WatchedDevices):
    """``tools``: name → program, of those that are installed."""

    vendor = NEURON

    def __init__(
        self,
        watch: Watch,
        tools: Mapping[str, str],
        *,
        environment: Mapping[str, str],
        sysfs: Sysfs,
        number: int | None,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(watch, Roll(patience_s=PATIENCE_S), number=number, monotonic=monotonic)
        self._sysfs = sysfs
        self._ls = NeuronLs(tools["neuron-ls"], environment) if "neuron-ls" in tools else None
        self._monitor = (
            NeuronMonitor(tools["neuron-monitor"], environment, monotonic=monotonic) if "neuron-monitor" in tools else None
        )
        self._listed: list[Listed] = []
        self._listed_at: float | None = None

    def _read(self) -> list[Reading]:
        said = self._monitor.said() if self._monitor else None
        found = [self._one(listed, said) for listed in self._present()]
        if self._monitor is None or said is not None:
            return found
        return [Reading(one.device, one.gauges, one.counts, self._monitor.trouble) for one in found]

    def _one(self, listed: Listed, said: dict[str, Any] | None) -> Reading:
        index = listed.index
        device = self._device(listed)
        by_driver = {ours: value for theirs, ours in _COUNTERS.items() if (value := self._sysfs.count(index, theirs)) is not None}
        by_monitor = _hardware_counters(said, index)
        counts = {name: max(by_driver.get(name, 0), by_monitor.get(name, 0)) for name in {*by_driver, *by_monitor}}
        gauges = {"memory_total_bytes": device.memory_mib * 2.0**20, "links_up": float(device.links), **_usage(said, device)}
        unread = "" if counts else f"no counters of device {index} can be read, neither in sysfs nor from neuron-monitor"
        return Reading(device, gauges, counts, unread)

    def _device(self, listed: Listed) -> Device:
        serial = self._sysfs.text(listed.index, "serial_number")
        name = f"neuron-{serial}" if serial else f"neuron-{listed.pci or listed.index}"
        model = self._sysfs.text(listed.index, "device_name") or "Neuron"
        return Device(name, listed.index, model, listed.memory_mib, listed.cores, listed.pci, listed.links)

    # ------------------------------------------------------------ which are there

    def _present(self) -> list[Listed]:
        """Those that ``neuron-ls`` has listed lately and the driver still has. Raises Unreadable."""
        try:
            in_driver: list[int] | None = self._sysfs.indices()
        except OSError:
            in_driver = None
        now = self._monotonic()
        is_stale = self._listed_at is None or now - self._listed_at >= _LIST_EVERY_S
        if self._ls is not None and (is_stale or in_driver != [listed.index for listed in self._listed]):
            self._list(self._ls, now, in_driver)
        if self._ls is None or not self._listed:
            return self._by_driver(in_driver)
        return [listed for listed in self._listed if in_driver is None or listed.index in in_driver]

    def _list(self, tool: NeuronLs, now: float, in_driver: list[int] | None) -> None:
        """Without its word the driver's goes; with neither there is nothing to go by."""
        try:
            self._listed = tool.listed()
        except ValueError as error:
            self._listed = []
            if in_driver is None:
                raise Unreadable(str(error)) from error
            log.warning("%s; going by the driver's tree", error)
        self._listed_at = now

    def _by_driver(self, in_driver: list[int] | None) -> list[Listed]:
        if in_driver is None:
            message = "neither neuron-ls nor the driver's tree in sysfs says which devices there are"
            raise Unreadable(message)
        return [Listed(index, self._sysfs.count(index, "core_count") or 1, 0, None, 0) for index in in_driver]

    # ------------------------------------------------------------ what can be done with them

    def env(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """A runtime names cores, counted through over all devices of the host."""
        cores = [device.index * device.cores + core for device in devices for core in range(device.cores)]
        return {"NEURON_RT_VISIBLE_CORES": ",".join(str(core) for core in cores)}

    def diagnose(self, level: int) -> Sequence[Finding]:
        """A monitor that was only just started is given the time to speak."""
        if self._monitor is not None:
            self._monitor.wait(_SPEAKS_WITHIN_S)
        return super().diagnose(level)

    def reset(self, device: Device) -> None:
        try:
            self._sysfs.reset(device.index)
        except OSError as error:
            message = f"device {device.index} cannot be reset: {error.strerror or error}; start the host anew instead"
            raise Refusal(message) from error
        self._watch.forgive(device.id)

    def close(self) -> None:
        super().close()
        if self._monitor is not None:
            self._monitor.close()


def tools_on(path: str | None) -> dict[str, str]:
    """Which of Neuron's programs are installed: on the path, or where its packages put them."""
    found = {}
    for name in ("neuron-ls", "neuron-monitor"):
        program = shutil.which(name, path=path) or shutil.which(name, path=TOOLS)
        if program is not None:
            found[name] = program
    return found


def _hardware_counters(said: dict[str, Any] | None, index: int) -> dict[str, int]:
    found = {}
    for entry in _entries(_member(said, "system_data", "neuron_hw_counters", "neuron_devices")):
        if entry.get("neuron_device_index") == index:
            found = {ours: entry[theirs] for theirs, ours in _COUNTERS.items() if isinstance(entry.get(theirs), int)}
    return found


def _usage(said: dict[str, Any] | None, device: Device) -> dict[str, float]:
    """Of the device's cores together: the mean of their use, the sum of their memory."""
    cores = {str(device.index * device.cores + core) for core in range(device.cores)}
    used: list[float] = []
    memory = 0.0
    for entry in _entries(_member(said, "neuron_runtime_data")):
        in_use = _member(entry, "report", "neuroncore_counters", "neuroncores_in_use")
        used += [_number(_member(in_use, core, "neuroncore_utilization")) for core in cores if _member(in_use, core) is not None]
        by_core = _member(entry, "report", "memory_used", "neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage")
        for core in cores:
            parts = _member(by_core, core)
            memory += sum(_number(part) for part in parts.values()) if isinstance(parts, dict) else 0.0
    if said is None:
        return {}
    return {"utilization_ratio": sum(used) / 100 / device.cores, "memory_used_bytes": memory}


def _member(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _entries(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
