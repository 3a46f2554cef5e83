"""The append-only log of what happened, in words, for people and for ListClusterEvents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Identity, Index, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base
from models.errors import NotFound
from models.ids import ClusterId, EventId, JobId, NodeId, OperationId, new_event_id
from models.paging import Cut, Page, page


class Level(StrEnum):
    INFO = "Info"
    WARN = "Warn"
    ERROR = "Error"


class About(StrEnum):
    """What an event is about. Jobs and calls (the audit log) are ours; the rest is HyperPod's enum of resource types."""

    CLUSTER = "Cluster"
    GROUP = "InstanceGroup"
    INSTANCE = "Instance"
    JOB = "Job"
    IMAGE = "Image"
    ALARM = "Alarm"
    CALL = "Call"


OF_CLUSTERS = (About.CLUSTER, About.GROUP, About.INSTANCE)


class Event(Base):
    """``sequence`` is the order of insertion; ``at`` may tie. ``written_in`` is the transaction that wrote it: see ``models.feed``."""

    __tablename__ = "event"
    __table_args__ = (
        Index("ix_event_cluster_at", "cluster_id", "at", "sequence"),
        Index("ix_event_job", "job_id", "sequence"),
        Index("ix_event_call", "at", "sequence", postgresql_where=text("about = 'Call'")),
        Index("ix_event_written", "written_in", "sequence"),
    )

    id: Mapped[EventId] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)
    written_in: Mapped[int] = mapped_column(BigInteger, server_default=text("txid_current()"))
    cluster_id: Mapped[ClusterId | None]
    group_name: Mapped[str | None]
    instance_id: Mapped[str | None]
    node_id: Mapped[NodeId | None]
    job_id: Mapped[JobId | None]
    operation_id: Mapped[OperationId | None]
    about: Mapped[str]
    level: Mapped[str]
    name: Mapped[str]
    description: Mapped[str]
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    at: Mapped[datetime]


def record(
    session: Session,
    name: str,
    description: str,
    *,
    about: About,
    now: datetime,
    level: Level = Level.INFO,
    cluster_id: ClusterId | None = None,
    group_name: str | None = None,
    instance_id: str | None = None,
    node_id: NodeId | None = None,
    job_id: JobId | None = None,
    operation_id: OperationId | None = None,
    details: dict[str, Any] | None = None,
) -> Event:
    """Writes an event in the caller's transaction. ``name`` is stable and machine-readable, ``description`` is for people."""
    event = Event(
        id=new_event_id(),
        name=name,
        description=description,
        about=about,
        level=level,
        cluster_id=cluster_id,
        group_name=group_name,
        instance_id=instance_id,
        node_id=node_id,
        job_id=job_id,
        operation_id=operation_id,
        details=details or {},
        at=now,
    )
    session.add(event)
    return event


def of_job(session: Session, job_id: JobId) -> list[Event]:
    """A job's events, oldest first."""
    return list(session.scalars(select(Event).where(Event.job_id == job_id).order_by(Event.sequence)))


def find(session: Session, cluster_id: str, event_id: str) -> Event:
    """An event that ``of_cluster`` lists. Raises NotFound."""
    wanted = select(Event).where(Event.id == event_id, Event.cluster_id == cluster_id, Event.about.in_(OF_CLUSTERS))
    row = session.scalars(wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Cluster event", name=event_id)
    return row


@dataclass(frozen=True)
class EventFilter:
    """Which events of a cluster a listing shows. A bound in time is exclusive on both sides; None does not bound."""

    after: datetime | None = None
    before: datetime | None = None
    group_name: str | None = None
    instance_id: str | None = None
    about: About | None = None
    operation_id: str | None = None


def of_cluster(session: Session, cluster_id: str, wanted: EventFilter, cut: Cut) -> Page[Event]:
    """A cluster's events in the order in which they happened, as far as HyperPod's API has a word for what they are about."""
    statement = select(Event).where(Event.cluster_id == cluster_id, Event.about.in_(OF_CLUSTERS))
    equals = {
        Event.group_name: wanted.group_name,
        Event.instance_id: wanted.instance_id,
        Event.about: wanted.about,
        Event.operation_id: wanted.operation_id,
    }
    statement = statement.where(*(column == value for column, value in equals.items() if value is not None))
    if wanted.after is not None:
        statement = statement.where(Event.at > wanted.after)
    if wanted.before is not None:
        statement = statement.where(Event.at < wanted.before)
    return page(session, statement, (Event.at, Event.sequence), lambda row: (row.at, row.sequence), cut)
