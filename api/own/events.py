"""Operations that tell what happened."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from api.operations import audit
from api.operations.audit import CallFilter
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, Moment, NextToken, Wire
from models.events import Event
from models.paging import Cut

Word = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class AuditWanted(Asked):
    """Bounds in time are exclusive. ``caller`` is the name of a key, ``operation`` that of an operation."""

    caller: Word | None = None
    operation: Word | None = None
    after: Moment | None = None
    before: Moment | None = None
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class AuditEventShape(Wire):
    """``named`` holds the names, ids and ARNs that the call named; ``outcome`` is Done, or the error that refused it."""

    event_id: str
    at: datetime
    service: str
    operation: str
    outcome: str
    caller: str
    key_id: str
    role: str
    team: str | None
    source: str | None
    request_id: str
    named: dict[str, Any]


class AuditEventList(Wire):
    audit_events: tuple[AuditEventShape, ...]
    next_token: str | None = None


def audited(work: Work, asked: AuditWanted) -> AuditEventList:
    """Calls that changed something or were to, newest first: who, what, from where, and what came of it. An admin of a team sees the team's."""
    wanted = CallFilter(asked.caller, asked.operation, asked.after, asked.before)
    found = audit.listed(work.session, wanted, Cut(asked.max_results, is_descending=True, cursor=asked.next_token))
    return AuditEventList(audit_events=tuple(_shape(row) for row in found.rows), next_token=found.cursor)


def _shape(row: Event) -> AuditEventShape:
    return AuditEventShape(event_id=row.id, at=row.at, operation=row.name, **row.details)


EVENTS: OwnTable = (
    Own(
        "ListAuditEvents",
        "GET",
        "/v1/audit-events",
        AuditWanted,
        AuditEventList,
        audited,
        page_of="audit_events",
    ),
)
