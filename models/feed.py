"""Events in an order in which they can be read on and on, without missing one and without reading one twice.

Transactions commit out of order: an event with a lower sequence may become visible after one with a higher, and a reader who remembers the
highest that he has seen would never see it. So events are read by the transaction that wrote them, and only those of transactions below which
everything has ended: nothing can appear there any more. What has been committed above that line is told as soon as the older ones are over.

A position holds for one database server: after a dump is restored into another one, transactions are numbered anew, and readers start afresh.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import BigInteger, Select, func, select, tuple_
from sqlalchemy.orm import Session

from models.errors import Invalid
from models.events import About, Event
from models.paging import Cut, Page, page

_LAST: Final = 2**63 - 1
_POSITION: Final = re.compile("([0-9]{1,19})-([0-9]{1,19})")


class Position(NamedTuple):
    """After this event of this transaction."""

    written_in: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.written_in}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises Invalid."""
        found = _POSITION.fullmatch(text)
        position = cls(int(found[1]), int(found[2])) if found else None
        if position is None or max(position) > _LAST:
            raise Invalid(message=f"'{text[:64]}' is no position: take one that an event has.")
        return position


@dataclass(frozen=True)
class FeedFilter:
    """Which events are told; None does not filter. Calls, which are the audit log, only ``with_calls``."""

    cluster_id: str | None = None
    job_id: str | None = None
    level: str | None = None
    about: str | None = None
    with_calls: bool = False


@dataclass(frozen=True)
class Told:
    """``position`` is where to go on, also where the filter has let nothing through.

    ``has_more`` says that there is more to read now; ``is_held_back`` that something has been committed which an older transaction, still open, keeps
    from being told.
    """

    rows: tuple[Event, ...]
    position: Position
    has_more: bool = False
    is_held_back: bool = False


def position_of(event: Event) -> Position:
    return Position(event.written_in, event.sequence)


def end(session: Session) -> Position:
    """After everything that can be told now."""
    return Position(_line(session) - 1, _LAST)


def read(session: Session, wanted: FeedFilter, after: Position, *, limit: int) -> Told:
    """The next events, at most ``limit``."""
    line = _line(session)
    here = tuple_(Event.written_in, Event.sequence)
    statement = _filtered(wanted).where(here > tuple_(*after), Event.written_in < line)
    rows = tuple(session.scalars(statement.order_by(Event.written_in, Event.sequence).limit(limit)))
    if len(rows) == limit:
        return Told(rows, position_of(rows[-1]), has_more=True)
    is_held_back = session.scalar(select(Event.sequence).where(Event.written_in >= line).limit(1)) is not None
    return Told(rows, max(after, Position(line - 1, _LAST)), is_held_back=is_held_back)


def listed(session: Session, wanted: FeedFilter, after: Position | None, cut: Cut) -> Page[Event]:
    """The same events, page by page."""
    statement = _filtered(wanted).where(Event.written_in < _line(session))
    if after is not None:
        statement = statement.where(tuple_(Event.written_in, Event.sequence) > tuple_(*after))
    return page(session, statement, (Event.written_in, Event.sequence), position_of, cut)


def _filtered(wanted: FeedFilter) -> Select[Event]:
    equals = {
        Event.cluster_id: wanted.cluster_id,
        Event.job_id: wanted.job_id,
        Event.level: wanted.level,
        Event.about: wanted.about,
    }
    statement = select(Event).where(*(column == value for column, value in equals.items() if value is not None))
    return statement if wanted.with_calls else statement.where(Event.about != About.CALL)


def _line(session: Session) -> int:
    """The oldest transaction that is still open: of all before it, everything is there to be read."""
    snapshot = func.txid_current_snapshot()
    return session.scalars(select(func.txid_snapshot_xmin(snapshot, type_=BigInteger))).one()
