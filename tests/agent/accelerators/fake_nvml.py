"""The vendor's library, played: devices that answer, refuse, err, or are lost. Constants and errors are the real library's."""

# ruff: noqa: N802  (the library's own names)

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class Gpu:
    """``errors``: question → the number of the error that it is answered with. ``rows``: corrected, uncorrected, pending, failure."""

    uuid: str
    pci: str
    is_lost: bool = False
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    ecc: dict[tuple[int, int], int] = field(default_factory=dict)
    sram_threshold: int = 0
    links: int = 4
    reasons: int = 0
    repair: tuple[int, int] = (0, 0)
    errors: dict[str, int] = field(default_factory=dict)


class FakeNvml:
    """A handle is the device itself."""

    def __init__(self, number: int = 2) -> None:
        self.gpus = [Gpu(f"GPU-{index}", f"00000000:{0x10 + index:02X}:00.0") for index in range(number)]
        self.unreachable: set[int] = set()
        self.events: list[tuple[Gpu, int]] = []
        self.init_error: int | None = None
        self.count_error: int | None = None
        self.register_error: int | None = None
        self.wait_error: int | None = None
        self.opened = 0
        self.sets = 0
        """Sets of events that have been made and not given back."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("nvmlDevice", "nvmlInit", "nvmlShut", "nvmlEventSet")):
            raise AttributeError(name)  # a library that is older than the question
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        _raise(self.init_error)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        _raise(self.count_error)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if index in self.unreachable:
            _raise(pynvml.NVML_ERROR_GPU_IS_LOST if self.gpus[index].is_lost else pynvml.NVML_ERROR_UNKNOWN)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return self._answer(gpu, "UUID", gpu.uuid)

    def nvmlDeviceGetName(self, gpu: Gpu) -> bytes:
        return self._answer(gpu, "Name", b"NVIDIA H100")

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> Any:
        return self._answer(gpu, "PciInfo", SimpleNamespace(busId=gpu.pci.encode()))

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> Any:
        return self._answer(gpu, "MemoryInfo", SimpleNamespace(total=80 * 2**30, used=2**30))

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> Any:
        return self._answer(gpu, "UtilizationRates", SimpleNamespace(gpu=75))

    def nvmlDeviceGetPowerUsage(self, gpu: Gpu) -> int:
        return self._answer(gpu, "PowerUsage", 350_000)

    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> int:
        return self._answer(gpu, "Temperature", 61 if sensor == pynvml.NVML_TEMPERATURE_GPU else 0)

    def nvmlDeviceGetMemoryErrorCounter(self, gpu: Gpu, kind: int, counter: int, place: int) -> int:
        assert counter == pynvml.NVML_VOLATILE_ECC
        return self._answer(gpu, "MemoryErrorCounter", gpu.ecc.get((kind, place), 0))

    def nvmlDeviceGetTotalEccErrors(self, gpu: Gpu, kind: int, counter: int) -> int:
        assert counter == pynvml.NVML_AGGREGATE_ECC
        return self._answer(gpu, "TotalEccErrors", 10 + kind)

    def nvmlDeviceGetSramEccErrorStatus(self, gpu: Gpu, status: Any) -> int:
        status._obj.bThresholdExceeded = gpu.sram_threshold
        return self._answer(gpu, "SramEccErrorStatus", 0)

    def nvmlDeviceGetRemappedRows(self, gpu: Gpu) -> Any:
        return self._answer(gpu, "RemappedRows", gpu.rows or _raise(pynvml.NVML_ERROR_NOT_SUPPORTED))

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: Gpu) -> int:
        return self._answer(gpu, "RetiredPagesPendingStatus", 0)

    def nvmlDeviceGetRetiredPages(self, gpu: Gpu, cause: int) -> list[int]:
        return self._answer(gpu, "RetiredPages", [1] * cause)

    def nvmlDeviceGetRepairStatus(self, gpu: Gpu) -> list[int]:
        return self._answer(gpu, "RepairStatus", list(gpu.repair))

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Gpu) -> int:
        return self._answer(gpu, "ClocksEventReasons", gpu.reasons)

    def nvmlDeviceGetNvLinkState(self, gpu: Gpu, link: int) -> int:
        if link >= 4:
            _raise(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._answer(gpu, "NvLinkState", int(link < gpu.links))

    def nvmlDeviceGetNvLinkErrorCounter(self, gpu: Gpu, link: int, counter: int) -> int:
        return self._answer(gpu, "NvLinkErrorCounter", 1 if (link, counter) == (0, 0) else 0)

    def nvmlEventSetCreate(self) -> list[Gpu]:
        self.sets += 1
        return []

    def nvmlEventSetFree(self, _events: list[Gpu]) -> None:
        assert self.opened > 0
        self.sets -= 1

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, kinds: int, events: list[Gpu]) -> None:
        assert kinds == pynvml.nvmlEventTypeXidCriticalError
        _raise(self.register_error)
        events.append(gpu)

    def nvmlEventSetWait_v2(self, _events: list[Gpu], _timeout_ms: int) -> Any:
        _raise(self.wait_error)
        if not self.events:
            _raise(pynvml.NVML_ERROR_TIMEOUT)
        gpu, xid = self.events.pop(0)
        return SimpleNamespace(device=gpu, eventType=8, eventData=xid)

    def _answer(self, gpu: Gpu, question: str, value: Any) -> Any:
        _raise(pynvml.NVML_ERROR_GPU_IS_LOST if gpu.is_lost else gpu.errors.get(question))
        return value


def _raise(error: int | None) -> None:
    if error is not None:
        raise pynvml.NVMLError(error)
