"""Takes in what agents report of processes that had to leave their nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from everstep.notices import CutReport
from models.job.reports import report_cut
from models.node.table import Node


def _cut(session: Session, _: Node, report: CutReport, now: datetime) -> None:
    """It had not left by the deadline."""
    report_cut(session, report.process, why=report.why, now=now)


TELL: Final[dict[type[Any], Callable[[Session, Node, Any, datetime], None]]] = {CutReport: _cut}
