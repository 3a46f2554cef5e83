"""Takes in what agents report of their providers' notices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy.orm import Session

from everstep.notices import SpotNotice
from models.node.table import Node
from models.spot import changes
from models.spot.changes import Told
from models.spot.states import NoticeKind


def _notice(session: Session, node: Node, report: SpotNotice, now: datetime) -> None:
    """The provider has said that it takes the node, or that it may, or that it does not after all."""
    kind = NoticeKind(report.notice.value)
    if report.is_over:
        changes.report_notice_over(session, node, kind, report.source, now=now)
        return
    deadline = None if report.deadline is None else _moment(report.deadline)
    told = Told(kind, _moment(report.at) or now, deadline, report.source)
    changes.report_notice(session, node, told, now=now)


def _moment(at: float) -> datetime | None:
    """None for what no calendar has: the notice counts all the same, as one that does not say when."""
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        return None


TELL: Final[dict[type[Any], Callable[[Session, Node, Any, datetime], None]]] = {SpotNotice: _notice}
