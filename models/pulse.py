"""The proof that work flows: beat sends a task through the broker, a worker writes this row. ``/readyz`` reads it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base


class Pulse(Base):
    """One row a queue."""

    __tablename__ = "pulse"

    queue: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]


def report_pulse(session: Session, queue: str, *, now: datetime) -> None:
    statement = insert(Pulse).values(queue=queue, at=now)
    session.execute(statement.on_conflict_do_update(index_elements=[Pulse.queue], set_={"at": statement.excluded.at}))


def last_pulses(session: Session) -> dict[str, datetime]:
    """When each queue was last served, by queue."""
    return {row.queue: row.at for row in session.scalars(select(Pulse))}
