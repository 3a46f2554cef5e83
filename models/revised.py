"""Something on a cluster that is kept in versions: a change names the version that it has seen, and makes the next one.

The row itself is the newest version; its table of revisions has all of them, the newest included. Whoever makes or changes one holds the lock of
its cluster: that is what makes names unique there and numbers consecutive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, ForeignKey, Integer, collate, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base
from models.errors import NotFound, Outdated
from models.ids import ClusterId, RevisedId
from models.machine import Machine
from models.move import advance
from models.paging import Cut, Page, page
from models.session import ACROSS_TEAMS, locked


class RevisedState(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


_S = RevisedState

REVISED = Machine(
    "Revised",
    initial=_S.CREATED,
    table={
        # Nothing has to be rolled out: what is stored is what holds, from the commit on.
        _S.CREATED: {_S.UPDATED: "updated", _S.DELETED: "deleted"},
        _S.UPDATED: {_S.UPDATED: "updated again", _S.DELETED: "deleted"},
        _S.DELETED: {},
    },
)


class Revised(Base):
    """``settings`` is what holds, by wire name, defaults filled in. ``created_by`` and ``updated_by`` are ARNs of callers."""

    __abstract__ = True
    NOUN: ClassVar[str]

    id: Mapped[RevisedId] = mapped_column(primary_key=True)
    arn: Mapped[str] = mapped_column(unique=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    cluster_arn: Mapped[str]
    name: Mapped[str]
    state: Mapped[RevisedState]
    revision: Mapped[int] = mapped_column(Integer)
    settings: Mapped[dict[str, Any]]
    description: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(index=True)
    created_by: Mapped[str]
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class Revision(Base):
    """One version, which never changes. ``owner_id`` is the id of what it is a version of."""

    __abstract__ = True

    owner_id: Mapped[RevisedId]
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    settings: Mapped[dict[str, Any]]
    description: Mapped[str | None]
    made_at: Mapped[datetime]
    made_by: Mapped[str]


Head = TypeVar("Head", bound=Revised)
Kept = TypeVar("Kept", bound=Revision)


@dataclass(frozen=True)
class Change:
    """What is to become of something revised. Settings that are not named stay, and so does a description that is None."""

    settings: Mapping[str, Any]
    description: str | None
    by: str
    at: datetime


@dataclass(frozen=True)
class Place:
    """Where something revised is made: its cluster, and what ARNs are made of."""

    cluster_id: ClusterId
    cluster_arn: str
    region: str
    account_id: str

    def beginning(self, change: Change) -> dict[str, Any]:
        """The columns of a first version."""
        return {
            "cluster_id": self.cluster_id,
            "cluster_arn": self.cluster_arn,
            "state": REVISED.initial,
            "revision": 1,
            "settings": dict(change.settings),
            "description": change.description,
            "created_at": change.at,
            "created_by": change.by,
            "updated_at": change.at,
            "updated_by": change.by,
        }


def keep(session: Session, head: Head, kept: type[Kept]) -> None:
    """Keeps what holds now as a version."""
    session.add(head)
    session.flush()
    session.add(
        kept(
            owner_id=head.id,
            cluster_id=head.cluster_id,
            number=head.revision,
            settings=head.settings,
            description=head.description,
            made_at=head.updated_at,
            made_by=head.updated_by,
        )
    )
    session.flush()


def revise(session: Session, head: Head, kept: type[Kept], change: Change, *, seen: int) -> None:
    """Makes the next version of a locked row.

    Raises:
        Outdated: ``seen`` is not the newest version any more.
    """
    if head.revision != seen:
        raise Outdated(kind=head.NOUN, name=head.name, seen=seen, newest=head.revision)
    head.settings = {**head.settings, **change.settings}
    head.description = head.description if change.description is None else change.description
    head.revision += 1
    head.updated_at, head.updated_by = change.at, change.by
    advance(REVISED, head, RevisedState.UPDATED, now=change.at)
    keep(session, head, kept)


def get(session: Session, head: type[Head], wanted_id: str, *, lock: bool = False) -> Head:
    """Raises NotFound: there is none, or it has been deleted."""
    wanted = select(head).where(head.id == wanted_id, head.state != RevisedState.DELETED)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind=head.NOUN, name=wanted_id)
    return row


def version(session: Session, head: Head, kept: type[Kept], number: int) -> Kept:
    """Raises NotFound: there has never been such a version."""
    row = session.scalars(select(kept).where(kept.owner_id == head.id, kept.number == number)).one_or_none()
    if row is None:
        raise NotFound(kind=f"Version {number} of {head.NOUN}", name=head.id)
    return row


def by_arn(session: Session, head: type[Head], arn: str) -> Head | None:
    return session.scalars(select(head).where(head.arn == arn, head.state != RevisedState.DELETED)).one_or_none()


def of_cluster(session: Session, head: type[Head], cluster_id: str) -> list[Head]:
    """Those that are not deleted, by their names."""
    wanted = select(head).where(head.cluster_id == cluster_id, head.state != RevisedState.DELETED)
    return list(session.scalars(wanted.order_by(collate(head.name, "C"))))


def taken(session: Session, head: type[Head], cluster_id: str, **values: str) -> str | None:
    """The first of these columns whose value another one of the cluster has already, whichever team sees it."""
    wanted = select(head).where(head.cluster_id == cluster_id, head.state != RevisedState.DELETED)
    for column, value in values.items():
        holds = wanted.where(getattr(head, column) == value).execution_options(**{ACROSS_TEAMS: True})
        if session.scalars(holds).first() is not None:
            return column
    return None


class Order(StrEnum):
    """What a listing is sorted by. The id decides between equals."""

    NAME = "Name"
    CREATED = "CreationTime"
    STATE = "Status"
    CLUSTER = "ClusterArn"


@dataclass(frozen=True)
class RevisedFilter:
    """Which ones a listing shows. A bound in time is exclusive on both sides; None does not bound. An empty ``states`` shows nothing."""

    created_after: datetime | None = None
    created_before: datetime | None = None
    name_contains: str | None = None
    cluster_arn: str | None = None
    states: frozenset[RevisedState] | None = None


def listed(session: Session, head: type[Head], wanted: RevisedFilter, cut: Cut, *, order: Order) -> Page[Head]:
    """Those that are not deleted."""
    statement = select(head).where(head.state != RevisedState.DELETED, *_bounds(head, wanted))
    if order is Order.CREATED:
        return page(session, statement, (head.created_at, head.id), lambda row: (row.created_at, row.id), cut)
    column = {Order.NAME: "name", Order.STATE: "state", Order.CLUSTER: "cluster_arn"}[order]
    columns = (collate(getattr(head, column), "C"), head.id)
    return page(session, statement, columns, lambda row: (getattr(row, column), row.id), cut)


def _bounds(head: type[Head], wanted: RevisedFilter) -> list[ColumnElement[bool]]:
    bounds: list[ColumnElement[bool]] = []
    if wanted.created_after is not None:
        bounds.append(head.created_at > wanted.created_after)
    if wanted.created_before is not None:
        bounds.append(head.created_at < wanted.created_before)
    if wanted.name_contains is not None:
        bounds.append(head.name.contains(wanted.name_contains, autoescape=True))
    if wanted.cluster_arn is not None:
        bounds.append(head.cluster_arn == wanted.cluster_arn)
    if wanted.states is not None:
        bounds.append(head.state.in_(wanted.states))
    return bounds
