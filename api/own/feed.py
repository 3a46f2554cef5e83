"""Everything that happens, in one log: of clusters, groups, instances, jobs, images and alarms, and for admins the calls."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from api.operations import feed
from api.operations.feed import FeedWish, Happened
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, NextToken, Wire
from models.errors import NotFound
from models.events import About, Level
from models.feed import Position, position_of
from models.paging import Cut

POSITION = r"^[0-9]{1,18}-[0-9]{1,18}$"


class EventsToTell(Asked):
    """Of one ``cluster``, by name or ARN, of one job, of one level, about one kind of resource; ``after`` is the position of the last event seen."""

    cluster: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    job_id: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None
    level: Level | None = None
    resource_type: About | None = None
    after: Annotated[str, StringConstraints(pattern=POSITION)] | None = None
    sort_order: Literal["Ascending", "Descending"] = "Ascending"
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class FeedShape(Wire):
    """``position`` is where the event stands in the order in which it can be told: what is after it comes later, whatever its time says."""

    event_id: str
    position: str
    at: datetime
    level: Level
    resource_type: About
    name: str
    description: str
    cluster_name: str | None
    cluster_arn: str | None
    instance_group_name: str | None
    instance_id: str | None
    job_id: str | None
    operation_id: str | None
    details: dict[str, Any]


class FeedList(Wire):
    events: tuple[FeedShape, ...]
    next_token: str | None = None


def listed(work: Work, asked: EventsToTell) -> FeedList:
    """What happened, in the order in which it can be told. Calls of operations are told to admins alone."""
    cut = Cut(asked.max_results, is_descending=asked.sort_order == "Descending", cursor=asked.next_token)
    found = feed.listed(work, wish(asked), after(asked), cut)
    return FeedList(events=tuple(shape(row) for row in found.rows), next_token=found.cursor)


def wish(asked: EventsToTell) -> FeedWish:
    return FeedWish(asked.cluster, asked.job_id, asked.level, asked.resource_type)


def after(asked: EventsToTell) -> Position | None:
    return None if asked.after is None else Position.parse(asked.after)


def shape(told: Happened) -> FeedShape:
    event, cluster = told.event, told.cluster
    return FeedShape(
        event_id=event.id,
        position=str(position_of(event)),
        at=event.at,
        level=Level(event.level),
        resource_type=About(event.about),
        name=event.name,
        description=event.description,
        cluster_name=cluster.name if cluster else None,
        cluster_arn=cluster.arn if cluster else None,
        instance_group_name=event.group_name,
        instance_id=event.instance_id,
        job_id=event.job_id,
        operation_id=event.operation_id,
        details=event.details,
    )


LIST_EVENTS = Own(
    name="ListEvents",
    method="GET",
    path="/v1/events",
    takes=EventsToTell,
    gives=FeedList,
    run=listed,
    page_of="events",
    errors=(NotFound,),
)
FEED: OwnTable = (LIST_EVENTS,)
