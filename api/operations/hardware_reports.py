"""Takes in what agents report of their accelerators: what the node has now, and each fault as it happens.

What follows is decided by the node's plan (``workers.plans.repair``). A fault that names a process is told to its job too, with its rank.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from everstep.hardware import HardwareFault, HardwareReport, HardwareState
from models.condition import changes
from models.condition.changes import COUNT, MONITOR, Finding
from models.condition.states import FaultClass, Source
from models.job import queries as jobs
from models.job.reports import report_device_fault
from models.node.table import Node

_MISMATCH: Final = {
    "nvidia": ("NvidiaErrorReboot", "NvidiaGPUCountMismatch"),
    "neuron": ("NeuronErrorReboot", "NeuronDeviceCountMismatch"),
}


def _hardware(session: Session, node: Node, report: HardwareReport, now: datetime) -> None:
    """What the node has, as it is now. Devices that are missing, and a monitor that cannot tell, are only suspected of something."""
    node.facts = {**node.facts, "hardware": report.to_wire(), "hardware_at": now.isoformat()}
    if report.state is HardwareState.UNKNOWN:
        changes.report_fault(session, node, _unknown(report, now), now=now)
        return
    changes.report_well(session, node, MONITOR, why=f"The monitor can tell again: {report.says}", now=now)
    if report.expected is None:
        return
    if len(report.devices) != report.expected:
        changes.report_fault(session, node, _mismatch(report, report.expected, now), now=now)
    else:
        changes.report_well(session, node, COUNT, why=f"All {report.expected} devices are there.", now=now)


def _fault(session: Session, node: Node, report: HardwareFault, now: datetime) -> None:
    """One occurrence."""
    at = _moment(report.at, now)
    finding = Finding(
        occurrence=report.id,
        fault_class=FaultClass(report.fault_class.value),
        code=report.code,
        type=report.type,
        reason=report.reason,
        evidence=report.evidence,
        at=at,
        vendor=report.vendor,
        device=report.device,
        pid=report.pid,
        happened_at=_by_our_clock(node, at),
    )
    if changes.report_fault(session, node, finding, now=now) is None:
        return
    if report.pid is not None:
        _tell_job(session, node, report, now)


def _tell_job(session: Session, node: Node, report: HardwareFault, now: datetime) -> None:
    """The process that the driver named, if it is one of a job: its end is explained by more than a signal's number."""
    for process in jobs.on_node(session, node.id):
        if process.pid == report.pid:
            where = f"{report.device or 'an accelerator'} of {node.instance_id}"
            text = f"{report.reason} ({report.code}) on {where}: {report.evidence}"
            report_device_fault(session, process.id, text=text, now=now)


def _unknown(report: HardwareReport, now: datetime) -> Finding:
    return Finding(
        occurrence=f"{MONITOR}:{report.at}",
        fault_class=FaultClass.UNKNOWN,
        code=MONITOR,
        type="AcceleratorHealthUnknown",
        reason="MonitorCannotTell",
        evidence=report.says,
        at=_moment(report.at, now),
        source=Source.CHECK,
        vendor=report.vendor,
        is_certain=False,
    )


def _mismatch(report: HardwareReport, expected: int, now: datetime) -> Finding:
    type_, reason = _MISMATCH.get(report.vendor, ("AcceleratorErrorReboot", "AcceleratorCountMismatch"))
    return Finding(
        occurrence=f"{COUNT}:{report.at}",
        fault_class=FaultClass.REBOOT,
        code=COUNT,
        type=type_,
        reason=reason,
        evidence=f"{len(report.devices)} of {expected} devices are there. {report.says}",
        at=_moment(report.at, now),
        source=Source.CHECK,
        vendor=report.vendor,
        is_certain=False,
    )


def _by_our_clock(node: Node, at: datetime) -> datetime | None:
    """A time of the node's clock: off by as much as that of its newest report of its devices was when it came, or by less, if that came late."""
    told, heard = node.facts.get("hardware", {}).get("at"), node.facts.get("hardware_at")
    if told is None or heard is None:
        return at
    heard_at = datetime.fromisoformat(heard)
    try:
        return at + (heard_at - _moment(told, heard_at))
    except OverflowError:
        return None


def _moment(at: float, now: datetime) -> datetime:
    """A clock that runs wild must not take the report with it."""
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        return now


TELL: Final[dict[type[Any], Callable[[Session, Node, Any, datetime], None]]] = {
    HardwareReport: _hardware,
    HardwareFault: _fault,
}
