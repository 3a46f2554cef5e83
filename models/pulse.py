"""The proof that work flows: beat sends a task through the broker, a worker writes this row. ``/readyz`` reads it.

The agents' door writes one as well, while it is open: agents that could not be heard have not been silent. Without it a control plane that
comes back after a minute would take all of its nodes for lost.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import case, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base

AGENTS: Final = "agents' door"
"""What stands for a queue's name in the pulse of the agents' door."""
EVERY_S: Final = 2.0
GAP: Final = timedelta(seconds=10)
"""Pulses farther apart than this: nobody was there in between."""


class Pulse(Base):
    """One row a queue. ``since`` is when its pulses began to come without a gap."""

    __tablename__ = "pulse"

    queue: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    since: Mapped[datetime]


def report_pulse(session: Session, queue: str, *, now: datetime) -> None:
    since = case((Pulse.at < now - GAP, now), else_=Pulse.since)
    statement = insert(Pulse).values(queue=queue, at=now, since=now)
    session.execute(statement.on_conflict_do_update(index_elements=[Pulse.queue], set_={"at": now, "since": since}))


def last_pulses(session: Session) -> dict[str, datetime]:
    """When each queue was last served, by queue."""
    return {row.queue: row.at for row in session.scalars(select(Pulse))}


def listening_since(session: Session, *, now: datetime) -> datetime | None:
    """Since when agents have been heard without a gap: ``now`` if nobody hears them at present, None if nobody ever did."""
    door = session.get(Pulse, AGENTS, populate_existing=True)
    if door is None:
        return None
    return door.since if door.at >= now - GAP else now
