"""A node's own metrics: the readings of its accelerators in Prometheus' text format, at ``/metrics`` on the node's address."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from agent.accelerators.base import Sample
from agent.memory_tier import metrics
from everstep.hardware import HardwareFault, HardwareReport, HardwareState

log = logging.getLogger(__name__)

FAMILIES: Mapping[str, tuple[str, str]] = {
    "accel_health_state": (
        "gauge",
        "1 for the state that the device is in: healthy, unhealthy or unknown; without a device, of all together.",
    ),
    "accel_devices": ("gauge", "Devices that are there."),
    "accel_devices_expected": ("gauge", "Devices that there should be, where that is known."),
    "accel_utilization_ratio": ("gauge", "How much of the time the device computed, 0 to 1."),
    "accel_memory_used_bytes": ("gauge", "Memory of the device that is taken."),
    "accel_memory_total_bytes": ("gauge", "Memory that the device has."),
    "accel_power_watts": ("gauge", "Power that the device draws."),
    "accel_temperature_celsius": ("gauge", "Temperature of the device."),
    "accel_ecc_errors_total": ("counter", "Memory errors since the driver was loaded, by type and location."),
    "accel_ecc_errors_lifetime": ("gauge", "Memory errors in the device's life, by type."),
    "accel_faults_total": ("counter", "Faults seen since the agent was started, by code and class."),
    "accel_link_errors_total": ("counter", "Errors on the device's links to its peers."),
    "accel_links_up": ("gauge", "Links to its peers that are up."),
    "accel_links_lost": ("gauge", "Links that were up before and are down."),
    "accel_remapped_rows": ("gauge", "Memory rows that have been replaced by spare ones."),
    "accel_retired_pages": ("gauge", "Memory pages that are used no more."),
    "accel_repair_state": (
        "gauge",
        "1 while the device says so of its memory: a repair is pending, has failed, or a threshold is exceeded.",
    ),
    "accel_throttled": ("gauge", "1 while the device is slowed down, by reason."),
    "accel_lost": ("gauge", "1 while the driver says that the device is lost."),
}
"""Name → type and help."""

_MOST_REQUEST_BYTES = 8_192
_REQUEST_S = 5.0


class Gauge:
    """What was seen last, ready to be read."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._faults: Counter[tuple[str, str, str, str]] = Counter()
        self._readings: tuple[Sample, ...] = ()
        self._report: HardwareReport | None = None

    def show(self, report: HardwareReport, readings: Sequence[Sample]) -> None:
        self._report = report
        self._readings = tuple(readings)

    def count(self, fault: HardwareFault) -> None:
        self._faults[fault.vendor, fault.code, fault.fault_class.value, fault.device or ""] += 1

    def text(self, jobs: Collection[str]) -> str:
        """``jobs``: what runs on the node now."""
        report = self._report
        of_all = {"node": self._node, "vendor": report.vendor if report else "unknown", "job": ",".join(sorted(jobs))}
        found = [_sample(Sample("accel_faults_total", number, device or None, {"vendor": vendor, "code": code, "class": of_class}), of_all)
                 for (vendor, code, of_class, device), number in self._faults.items()]  # fmt: skip
        found += [_sample(one, of_all) for one in (*self._readings, *_states(report))]
        return metrics.render(found, FAMILIES)


class Door:
    """Answers ``GET /metrics``, and nothing else."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._server: asyncio.Server | None = None
        self.jobs: Collection[str] = ()
        """What runs on the node now."""

    async def open(self, address: str, port: int) -> int:
        """The port that it listens at. Raises OSError: it is taken."""
        self._server = await asyncio.start_server(self._serve, address, port, limit=_MOST_REQUEST_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.split(b"\r\n", 1)[0].split(b" ")))
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _answer(self, request: list[bytes]) -> bytes:
        if len(request) != 3 or request[0] not in {b"GET", b"HEAD"}:  # noqa: PLR2004  (method, path, version)
            return _response("405 Method Not Allowed", b"only GET is served here\n")
        if request[1].split(b"?", 1)[0] != b"/metrics":
            return _response("404 Not Found", b"only /metrics is served here\n")
        return _response("200 OK", self._gauge.text(self.jobs).encode(), is_head=request[0] == b"HEAD")


def _response(status: str, body: bytes, *, is_head: bool = False) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {metrics.CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if is_head else body)


def _sample(one: Sample, of_all: Mapping[str, str]) -> metrics.Sample:
    labels = {**of_all, **({"device": one.device} if one.device else {}), **one.labels}
    return metrics.Sample(one.name, one.value, {name: value for name, value in labels.items() if value})


def _states(report: HardwareReport | None) -> Iterable[Sample]:
    if report is None:
        return
    yield Sample("accel_devices", len(report.devices))
    if report.expected is not None:
        yield Sample("accel_devices_expected", report.expected)
    for name, of_one in ((None, report.state), *((device.id, device.state) for device in report.devices)):
        for state in HardwareState:
            yield Sample("accel_health_state", float(of_one is state), name, {"state": state.value})
