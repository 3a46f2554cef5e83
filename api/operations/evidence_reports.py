"""Takes in what agents report of processes that live and yet are no use to their jobs, and of losses that look wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from everstep.evidence import AnomalyReport, HungReport, StragglerReport
from models.job.evidence import Anomaly, Hang, Lag, report_anomaly, report_hung, report_straggler
from models.node.table import Node


def _hung(session: Session, _: Node, report: HungReport, now: datetime) -> None:
    """A process makes no progress. Whether it is to blame is its job's plan to say, from what all ranks say."""
    hang = Hang(report.generation, report.step, report.how.value, report.seconds, report.limit_s, report.stack)
    report_hung(session, report.process, hang, now=now)


def _straggler(session: Session, _: Node, report: StragglerReport, now: datetime) -> None:
    lag = Lag(report.generation, report.step, report.own_s, report.others_s, report.steps, report.has_caught_up)
    report_straggler(session, report.process, lag, now=now)


def _anomaly(session: Session, _: Node, report: AnomalyReport, now: datetime) -> None:
    report_anomaly(
        session, report.process, Anomaly(report.generation, report.step, report.what, report.action, report.words), now=now
    )


TELL: Final[dict[type[Any], Callable[[Session, Node, Any, datetime], None]]] = {
    HungReport: _hung,
    StragglerReport: _straggler,
    AnomalyReport: _anomaly,
}
