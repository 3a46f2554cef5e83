"""Use-cases of the feed: everything that happens, as far as the caller may know of it, to be read on and on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import select

from api.operations.work import Work
from models import feed
from models.access import queries as access
from models.access.states import Role
from models.cluster import queries as clusters
from models.cluster.table import Cluster
from models.errors import Unauthenticated
from models.events import About, Event
from models.feed import FeedFilter, Position
from models.job import queries as jobs
from models.paging import Cut, Page

PAGE: Final = 200
"""Events that a follower is told at once: what it costs in memory while they are written to a slow reader."""


@dataclass(frozen=True)
class FeedWish:
    """``cluster`` is a name or an ARN; None does not filter."""

    cluster: str | None = None
    job_id: str | None = None
    level: str | None = None
    about: About | None = None


@dataclass(frozen=True)
class Happened:
    """An event and the cluster that people know by its name."""

    event: Event
    cluster: Cluster | None


@dataclass(frozen=True)
class Chapter:
    """``position`` is where to go on; the rest as in ``models.feed.Told``."""

    events: tuple[Happened, ...]
    position: Position
    has_more: bool
    is_held_back: bool


def listed(work: Work, wish: FeedWish, after: Position | None, cut: Cut) -> Page[Happened]:
    """Raises NotFound: no such cluster, or no such job."""
    found = feed.listed(work.session, _filter(work, wish), after, cut)
    return Page(_views(work, found.rows), found.cursor)


def begin(work: Work, wish: FeedWish, after: Position | None) -> tuple[FeedFilter, Position]:
    """What a follower follows, and from where: from now on, unless it says after what. Raises NotFound."""
    return _filter(work, wish), feed.end(work.session) if after is None else after


def go_on(work: Work, wanted: FeedFilter, after: Position) -> Chapter:
    """What has happened since.

    Raises:
        Unauthenticated: the follower's credential is not good any more.
    """
    if work.caller.key_id and not access.is_active(access.get(work.session, work.caller.key_id), now=work.now):
        raise Unauthenticated
    told = feed.read(work.session, wanted, after, limit=PAGE)
    return Chapter(_views(work, told.rows), told.position, told.has_more, told.is_held_back)


def _filter(work: Work, wish: FeedWish) -> FeedFilter:
    wanted = FeedFilter(level=wish.level, about=wish.about, with_calls=work.caller.role is Role.ADMIN)
    if wish.cluster is not None:
        wanted = replace(wanted, cluster_id=clusters.find(work.session, wish.cluster).id)
    if wish.job_id is not None:
        wanted = replace(wanted, job_id=jobs.get(work.session, wish.job_id).id)
    return wanted


def _views(work: Work, rows: Sequence[Event]) -> tuple[Happened, ...]:
    known: Mapping[str | None, Cluster] = {}
    ids = {row.cluster_id for row in rows} - {None}
    if ids:
        known = {cluster.id: cluster for cluster in work.session.scalars(select(Cluster).where(Cluster.id.in_(ids)))}
    return tuple(Happened(row, known.get(row.cluster_id)) for row in rows)
