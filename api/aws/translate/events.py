"""Events between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.aws.translate.clusters import read_cut
from api.aws.translate.times import read_after, read_before
from api.operations.events import EventChoice, EventListing, EventView
from models.events import About, Event, EventFilter

LIFECYCLE: Final = {"lifecycle started": "Started", "lifecycle succeeded": "Succeeded", "lifecycle failed": "Failed"}
"""What ``LcsExecutionState`` says, by the event's name."""
COUNTS: Final = {"current": "InstanceCount", "target": "TargetCount", "minimum": "MinCount"}
"""Members of ``InstanceGroupScaling`` by the names of an event's details."""


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


def read_choice(members: Mapping[str, Any]) -> EventChoice:
    return EventChoice(members["ClusterName"], members["EventId"])


def write_listing(views: Sequence[EventView]) -> dict[str, Any]:
    return {"Events": [_summary(view) for view in views]}


def write_details(view: EventView) -> dict[str, Any]:
    return {"EventDetails": {**_summary(view), "EventDetails": {"EventMetadata": _metadata(view.event)}}}


def _summary(view: EventView) -> dict[str, Any]:
    event = view.event
    return {
        "EventId": event.id,
        "ClusterArn": view.cluster.arn,
        "ClusterName": view.cluster.name,
        "InstanceGroupName": event.group_name,
        "InstanceId": event.instance_id,
        "ResourceType": event.about,
        "EventTime": event.at,
        "Description": event.description,
        "EventLevel": event.level,
        "OperationId": event.operation_id,
    }


def _metadata(event: Event) -> dict[str, Any]:
    """A tagged union: exactly one member, by what the event is about."""
    failure = event.details.get("failure")
    if event.about == About.INSTANCE:
        lifecycle = LIFECYCLE.get(event.name)
        logical_id = event.details.get("logical_id")
        return {"Instance": {"FailureMessage": failure, "NodeLogicalId": logical_id, "LcsExecutionState": lifecycle}}
    if event.about == About.GROUP and "target" in event.details:
        counts = {wire: event.details.get(name) for name, wire in COUNTS.items()}
        return {"InstanceGroupScaling": {**counts, "FailureMessage": failure}}
    if event.about == About.GROUP:
        return {"InstanceGroup": {"FailureMessage": failure}}
    return {"Cluster": {"FailureMessage": failure}}
