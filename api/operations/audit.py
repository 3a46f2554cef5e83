"""The audit log: who called which operation that changes something, from where, on what, and what came of it. Never what was sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth import Caller, is_mutating
from api.ids import new_request_id
from models.events import About, Event, Level, record
from models.paging import Cut, Page, page

DONE: Final = "Done"
"""The outcome of a call that was carried out. Of others it is the name of their error."""
_NAMING: Final = ("arn", "name", "id", "identifier", "arns", "names", "ids", "cluster", "target", "version")
_LONGEST: Final = 256
_MOST: Final = 20


@dataclass
class Call:
    """A call of an operation of a service, ``sagemaker`` or ``everstep``. ``members`` is what it was asked with, as far as that has been read."""

    service: str
    operation: str
    members: Mapping[str, Any] = field(default_factory=dict, repr=False)
    request_id: str = field(default_factory=new_request_id)

    @property
    def named(self) -> dict[str, Any]:
        """The ids, names and ARNs at the top of what was asked, and nothing else of it. They may be of members that no operation has."""
        found = {
            name[:_LONGEST]: _told(value) for name, value in self.members.items() if name[-_LONGEST:].lower().endswith(_NAMING)
        }
        return dict(islice(((name, value) for name, value in found.items() if value), _MOST))


def record_call(session: Session, caller: Caller, call: Call, *, outcome: str, now: datetime) -> None:
    """Enters a call, in the caller's transaction. One that only looks is not entered."""
    if not is_mutating(call.operation):
        return
    who = {"caller": caller.name, "key_id": caller.key_id, "role": caller.role, "team": caller.team, "source": caller.source}
    record(
        session,
        call.operation,
        f"{caller.name} called {call.service}:{call.operation}: {outcome}",
        about=About.CALL,
        level=Level.INFO if outcome == DONE else Level.WARN,
        details=who | {"service": call.service, "request_id": call.request_id, "named": call.named, "outcome": outcome},
        now=now,
    )


@dataclass(frozen=True)
class CallFilter:
    """Which calls a listing shows. A bound in time is exclusive on both sides; None does not bound."""

    caller: str | None = None
    operation: str | None = None
    after: datetime | None = None
    before: datetime | None = None


def listed(session: Session, wanted: CallFilter, cut: Cut) -> Page[Event]:
    """The audit log, by time; a team's caller sees the calls of its team."""
    statement = select(Event).where(Event.about == About.CALL)
    if wanted.caller is not None:
        statement = statement.where(Event.details["caller"].astext == wanted.caller)
    if wanted.operation is not None:
        statement = statement.where(Event.name == wanted.operation)
    if wanted.after is not None:
        statement = statement.where(Event.at > wanted.after)
    if wanted.before is not None:
        statement = statement.where(Event.at < wanted.before)
    return page(session, statement, (Event.at, Event.sequence), lambda row: (row.at, row.sequence), cut)


def _told(value: Any) -> Any:
    if isinstance(value, list):
        return [item[:_LONGEST] for item in value[:_MOST] if isinstance(item, str)]
    return value[:_LONGEST] if isinstance(value, str) else None
