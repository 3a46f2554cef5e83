"""Takes in what an agent reports: a batch in one transaction, each report once.

A report that cannot be applied must not stop those behind it for ever: it is named, the batch is rolled back, and the agent drops it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from api.operations import evacuation_reports, evidence_reports, hardware_reports, notice_reports, tier_reports
from api.operations.agents import OtherBoot, identify, report_process
from everstep import protocol
from everstep.examination import HealthReport
from everstep.hardware import HardwareFault, HardwareReport
from everstep.notices import SpotNotice
from everstep.tiers import CopiesReport, DurableReport, TierReport
from models.errors import DomainError
from models.fault import queries as faults
from models.fault.changes import report_fault
from models.fault.states import FaultState
from models.health import queries as health
from models.health.changes import report_findings
from models.ids import NodeId, ProcessId
from models.job import logs as job_logs
from models.job import reports as job_reports
from models.job.booking import Committed
from models.job.table import Job, JobProcess
from models.node import changes as node_changes
from models.node.table import Node

_OF_NODE = (
    protocol.LifecycleStarted
    | protocol.LifecycleReport
    | protocol.FaultReport
    | HealthReport
    | CopiesReport
    | DurableReport
    | TierReport
    | HardwareReport
    | HardwareFault
    | SpotNotice
)
"""Reports that name no job."""

log = logging.getLogger(__name__)


class BadReport(DomainError):
    """Report {index} (sequence {sequence}, kind {kind}) cannot be applied: {reason}."""


@dataclass(frozen=True)
class Sequenced:
    """A report under the number that the agent gave it; numbers grow within a boot and are never given twice."""

    sequence: int
    report: protocol.Report


def accept(session: Session, token: str, boot: str, reports: Sequence[Sequenced], *, now: datetime) -> None:
    """Applies the reports that are new, in order.

    Raises:
        Unauthenticated, NodeGone: as ``agents.identify``.
        OtherBoot: the node's agent has been started again since.
        BadReport: one of them cannot be applied; nothing was.
    """
    node = identify(session, token, lock=True)
    if node.boot != boot:
        raise OtherBoot
    fresh = [(index, item) for index, item in enumerate(reports) if item.sequence > node.report_sequence]
    if not fresh:
        return
    own = _own(session, node.id, [item.report for _, item in fresh])
    _hold(session, node, [item.report for _, item in fresh], now)
    for index, item in fresh:
        _apply(session, node, own, index, item, now)
    node.report_sequence = fresh[-1][1].sequence
    session.flush()


def _own(session: Session, node_id: NodeId, reports: Sequence[protocol.Report]) -> set[str]:
    """The jobs and processes of which this node may speak. Locks the jobs, in one order, unless only logs are told."""
    job_ids = {report.job for report in reports if not isinstance(report, _OF_NODE)}
    rows = session.execute(
        select(JobProcess.id, JobProcess.job_id).where(JobProcess.node_id == node_id, JobProcess.job_id.in_(job_ids))
    ).all()
    told = {report.job for report in reports if not isinstance(report, _OF_NODE | protocol.LogReport)}
    to_lock = told & {row.job_id for row in rows}
    if to_lock:
        session.execute(select(Job.id).where(Job.id.in_(to_lock)).order_by(Job.id).with_for_update(key_share=True))
    return {row.id for row in rows} | {row.job_id for row in rows}


def _hold(session: Session, node: Node, told: Sequence[protocol.Report], now: datetime) -> None:
    """Locks the steps that the batch will change, after the jobs. What cannot be applied is named by ``_apply``."""
    try:
        with session.begin_nested():
            tier_reports.hold(session, node, told, now)
    except (OperationalError, InterfaceError):
        raise
    except (ValueError, OverflowError, OSError, DBAPIError) as error:
        log.warning("the steps of a batch of node %s cannot be held: %s", node.id, type(error).__name__)


def _apply(session: Session, node: Node, own: set[str], index: int, item: Sequenced, now: datetime) -> None:
    report = item.report
    node_id = node.id  # a failed transaction takes the row's attributes with it
    subject = getattr(report, "process", None) or getattr(report, "job", None)
    if subject is not None and subject not in own:
        log.warning("node %s reports %s of %s, which was never placed on it; ignored", node_id, report.kind, subject)
        return
    try:
        _TELL[type(report)](session, node, report, now)
        session.flush()
    except (OperationalError, InterfaceError):
        raise  # the database's trouble, not the report's: the agent sends the batch again
    except Exception as error:
        log.exception("report %s of node %s cannot be applied", item.sequence, node_id)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadReport(index=index, sequence=item.sequence, kind=report.kind, reason=reason) from error


def _process(session: Session, _: Node, report: protocol.ProcessReport, now: datetime) -> None:
    report_process(session, report, now=now)


def _broken(session: Session, _: Node, report: protocol.BrokenReport, now: datetime) -> None:
    job_reports.report_broken(session, report.process, report.generation, message=report.message, now=now)


def _reformed(session: Session, _: Node, report: protocol.ReformedReport, now: datetime) -> None:
    reform = job_reports.Reform(
        generation=report.generation,
        rank=report.rank,
        step=report.step,
        source=report.source.value,
        bytes_moved=report.bytes_moved,
        phases=report.phases,
        copies=report.copies,
        worst_loss=report.worst_loss,
    )
    job_reports.report_reformed(session, report.process, reform, now=now)


def _progress(session: Session, _: Node, report: protocol.ProgressReport, __: datetime) -> None:
    steps = [
        Committed(step.step, step.loss, step.seconds, datetime.fromtimestamp(step.at, UTC), step.stall_s) for step in report.steps
    ]
    job_reports.report_progress(session, report.job, report.generation, steps)


def _finished(session: Session, _: Node, report: protocol.FinishedReport, now: datetime) -> None:
    job_reports.report_finished(session, report.process, report.generation, step=report.step, digest=report.digest, now=now)


def _failed(session: Session, _: Node, report: protocol.FailedReport, now: datetime) -> None:
    traceback = report.traceback if report.traceback.strip() else "The process failed without a traceback."
    if report.stays:
        job_reports.report_raised(session, report.process, report.generation, traceback=traceback, now=now)
    else:
        job_reports.report_failed(session, report.process, traceback=traceback, now=now)


def _lifecycle_started(session: Session, node: Node, report: protocol.LifecycleStarted, now: datetime) -> None:
    node_changes.report_lifecycle_started(session, node, script=report.script, attempt=report.attempt, now=now)


def _lifecycle(session: Session, node: Node, report: protocol.LifecycleReport, now: datetime) -> None:
    node_changes.report_lifecycle(
        session,
        node,
        exit_code=report.exit_code,
        tail=report.tail,
        script=report.script,
        attempt=report.attempt,
        is_final=report.is_final,
        now=now,
    )


def _log(session: Session, _: Node, report: protocol.LogReport, now: datetime) -> None:
    job_logs.report_log(session, ProcessId(report.process), report.text, skipped=report.skipped, now=now)


def _fault(session: Session, node: Node, report: protocol.FaultReport, now: datetime) -> None:
    fault = faults.get(session, report.fault, lock=True)
    if fault.node_id == node.id:
        report_fault(session, fault, FaultState(report.outcome.value), note=report.note, now=now)


def _health(session: Session, node: Node, report: HealthReport, now: datetime) -> None:
    check = health.get(session, report.check)
    if check is not None and check.node_id == node.id:
        report_findings(session, node, check, [finding.to_wire() for finding in report.findings], now=now)


_TELL: dict[type[protocol.Report], Callable[[Session, Node, Any, datetime], None]] = {
    protocol.ProcessReport: _process,
    protocol.BrokenReport: _broken,
    protocol.ReformedReport: _reformed,
    protocol.ProgressReport: _progress,
    protocol.FinishedReport: _finished,
    protocol.FailedReport: _failed,
    protocol.LifecycleStarted: _lifecycle_started,
    protocol.LifecycleReport: _lifecycle,
    protocol.LogReport: _log,
    protocol.FaultReport: _fault,
    HealthReport: _health,
    **tier_reports.TELL,
    **hardware_reports.TELL,
    **notice_reports.TELL,
    **evacuation_reports.TELL,
    **evidence_reports.TELL,
}
