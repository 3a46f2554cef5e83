"""Events between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.aws.translate.clusters import read_cut
from api.aws.translate.times import read_after, read_before
from api.operations.events import EventListing, EventView
from models.events import About, EventFilter


def read_listing(members: Mapping[str, Any], cursor: str | None) -> EventListing:
    about = members.get("ResourceType")
    return EventListing(
        cluster=members["ClusterName"],
        wanted=EventFilter(
            after=read_after(members, "EventTimeAfter"),
            before=read_before(members, "EventTimeBefore"),
            group_name=members.get("InstanceGroupName"),
            instance_id=members.get("NodeId"),
            about=None if about is None else About(about),
            operation_id=members.get("OperationId"),
        ),
        cut=read_cut(members, cursor, default_order="Descending"),
    )


def write_listing(views: Sequence[EventView]) -> dict[str, Any]:
    return {
        "Events": [
            {
                "EventId": view.event.id,
                "ClusterArn": view.cluster.arn,
                "ClusterName": view.cluster.name,
                "InstanceGroupName": view.event.group_name,
                "InstanceId": view.event.instance_id,
                "ResourceType": view.event.about,
                "EventTime": view.event.at,
                "Description": view.event.description,
                "EventLevel": view.event.level,
                "OperationId": view.event.operation_id,
            }
            for view in views
        ]
    }
