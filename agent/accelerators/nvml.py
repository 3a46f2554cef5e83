"""NVIDIA's devices, through its management library (NVML; ``nvidia-ml-py``), which may be missing, and each of whose calls may fail.

What a device does not support is left out; what it supports and cannot tell now leaves it in doubt. Xids come from the kernel's log; where
that cannot be read, from the library's own events.
"""

from __future__ import annotations

import importlib
import logging
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agent.accelerators.base import Refusal
from agent.accelerators.devices import Unreadable, WatchedDevices
from agent.accelerators.kernel_lines import NVIDIA, Named
from agent.accelerators.nvml_reading import Asked, Silent, device_of, reading_of
from agent.accelerators.readings import Reading
from agent.accelerators.roll import Roll
from agent.accelerators.watch import Watch
from everstep.examination import Finding, Verdict
from everstep.hardware import Device, HardwareFault

log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""How long a device may take to show itself after the host's start: drivers are loaded late."""
_MOST_EVENTS = 256
DIAGNOSES: Mapping[int, float] = MappingProxyType({2: 600.0, 3: 1380.0})
"""Level of DCGM's diagnosis → how long it may take, in seconds. Level 4 takes hours, for which nobody waits: the deepest here is run instead."""
_DEEPEST = max(DIAGNOSES)
_RESET_S = 60.0


def library() -> Any | None:
    """``pynvml``, or None if it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


class Nvidia(WatchedDevices):
    """``nvml`` is the module ``pynvml``, or one that speaks like it."""

    vendor = NVIDIA

    def __init__(
        self,
        nvml: Any | None,
        watch: Watch,
        *,
        boot: str,
        number: int | None,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(watch, Roll(patience_s=PATIENCE_S), number=number, monotonic=monotonic)
        self._nvml = nvml
        self._boot = boot
        self._wall = wall
        self._is_open = False
        self._known: dict[int, Device] = {}
        self._most_links: dict[str, int] = {}
        self._lost_links: dict[str, int] = {}
        self._events: Any | None = None

    def _read(self) -> list[Reading]:
        nvml = self._open()
        try:
            number = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._shut()
            raise Unreadable(_sentence(error)) from error
        found = [self._one(nvml, index) for index in range(number)]
        return [reading for reading in found if reading is not None]

    def _one(self, nvml: Any, index: int) -> Reading | None:
        """None: the driver counts the device, and cannot reach it; it is missing."""
        try:
            asked = Asked(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
            device = device_of(asked, index)
        except nvml.NVMLError as error:
            before = self._known.get(index)
            is_lost = getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST
            return Reading(before, counts={"lost": 1}) if before is not None and is_lost else None
        except Silent:
            return None
        self._known[index] = device
        return reading_of(asked, device, self._links_lost(device))

    def _links_lost(self, device: Device) -> int:
        """Those that were up before, and are down for the second look in a row: a link may be set up anew."""
        most = self._most_links[device.id] = max(self._most_links.get(device.id, 0), device.links)
        lost = most - device.links
        was_low, self._lost_links[device.id] = self._lost_links.get(device.id, 0), lost
        return min(was_low, lost)

    def _open(self) -> Any:
        if self._nvml is None:
            message = "the driver is loaded and nvidia-ml-py is not installed, so that nothing can be read; install everstep[gpu]"
            raise Unreadable(message)
        if not self._is_open:
            try:
                self._nvml.nvmlInit()
            except self._nvml.NVMLError as error:
                raise Unreadable(_sentence(error)) from error
            self._is_open = True
        return self._nvml

    def _shut(self) -> None:
        """So that the next read begins afresh: a driver that was loaded anew knows nothing of the old handles."""
        nvml, self._is_open = self._nvml, False
        if nvml is not None:
            self._listen_no_more(nvml)
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                log.debug("NVML was not open")

    # ------------------------------------------------------------ the library's own events

    def _deafness(self) -> str:
        return "" if self._events is not None else self._watch.deafness

    def _heard(self) -> list[HardwareFault]:
        """Xids by the library's events. The log has them all, and names them for good: while it can be read, these are only drained."""
        nvml = self._nvml
        if nvml is None or not self._is_open or not self._listens(nvml):
            return []
        found = []
        for _ in range(_MOST_EVENTS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                if getattr(error, "value", None) != nvml.NVML_ERROR_TIMEOUT:
                    self._listen_no_more(nvml)
                break
            heard = self._note(nvml, event) if self._watch.deafness else None
            found += [heard] if heard else []
        return found

    def _listens(self, nvml: Any) -> bool:
        """A set that came to nothing is given back at once: this is asked several times a second."""
        if self._events is None:
            try:
                self._events = nvml.nvmlEventSetCreate()
                for index in range(nvml.nvmlDeviceGetCount()):
                    nvml.nvmlDeviceRegisterEvents(
                        nvml.nvmlDeviceGetHandleByIndex(index), nvml.nvmlEventTypeXidCriticalError, self._events
                    )
            except nvml.NVMLError as error:
                log.debug("no events of NVML: %s", error)
                self._listen_no_more(nvml)
        return self._events is not None

    def _listen_no_more(self, nvml: Any) -> None:
        events, self._events = self._events, None
        if events is not None:
            try:
                nvml.nvmlEventSetFree(events)
            except nvml.NVMLError as error:
                log.debug("a set of events cannot be given back to NVML: %s", error)

    def _note(self, nvml: Any, event: Any) -> HardwareFault | None:
        try:
            device: str | None = Asked(nvml, event.device).text("nvmlDeviceGetUUID")
        except (Silent, nvml.NVMLError):
            device = None
        at = self._wall()
        name = Named(NVIDIA, f"xid:{int(event.eventData)}")
        place = f"{self._boot}:nvml:{device}:{at:.3f}"
        return self._watch.note(name, device, evidence=f"NVML event: Xid {int(event.eventData)} on {device}", place=place, at=at)

    # ------------------------------------------------------------ what can be done with them

    def env(self, devices: Sequence[Device]) -> Mapping[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(device.id for device in devices)}

    def diagnose(self, level: int) -> Sequence[Finding]:
        """From level 2 on with DCGM's diagnosis, where it is installed."""
        findings = list(super().diagnose(level))
        if level >= min(DIAGNOSES):
            findings.append(_dcgm(level))
        return findings

    def reset(self, device: Device) -> None:
        tool = shutil.which("nvidia-smi")
        if tool is None:
            super().reset(device)
            return
        try:
            done = subprocess.run(
                [tool, "--gpu-reset", "-i", device.id], capture_output=True, text=True, timeout=_RESET_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            message = f"device {device.index} was not reset within {_RESET_S:g} s; start the host anew instead"
            raise Refusal(message) from error
        if done.returncode != 0:
            message = f"device {device.index} cannot be reset: {(done.stdout + done.stderr).strip()}"
            raise Refusal(message)
        self._watch.forgive(device.id)

    def close(self) -> None:
        super().close()
        if self._is_open:
            self._shut()


def _sentence(error: Exception) -> str:
    return f"the NVIDIA driver does not answer: {error}"


def _dcgm(level: int, limits_s: Mapping[int, float] = DIAGNOSES) -> Finding:
    """A sound host of many devices may need longer for the deepest level than there is: then nothing is found, for or against it."""
    run = min(level, _DEEPEST)
    what = f"DCGM's diagnosis of level {run}" + (f", in place of {level}, which takes too long," if run < level else "")
    tool = shutil.which("dcgmi")
    if tool is None:
        return Finding("InstanceStress", Verdict.SKIPPED, f"DCGM is not installed, so that {what} was left out")
    limit_s = limits_s[run]
    try:
        done = subprocess.run([tool, "diag", "-r", str(run)], capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        verdict = Verdict.SKIPPED if run == _DEEPEST else Verdict.FAILED
        return Finding("InstanceStress", verdict, f"{what} took longer than {limit_s:g} s and was ended")
    if done.returncode == 0:
        return Finding("InstanceStress", Verdict.PASSED, f"{what} found nothing")
    tail = " ".join((done.stdout + done.stderr).split())[-500:]
    return Finding("InstanceStress", Verdict.FAILED, f"{what} failed with {done.returncode}: {tail}")
