"""Use-cases of a cluster's log of events."""

from __future__ import annotations

from dataclasses import dataclass

from api.operations.work import Work
from models import events
from models.cluster import queries as clusters
from models.cluster.table import Cluster
from models.errors import Invalid
from models.events import Event, EventFilter
from models.paging import Cut, Page


@dataclass(frozen=True)
class EventListing:
    cluster: str
    wanted: EventFilter
    cut: Cut


@dataclass(frozen=True)
class EventChoice:
    cluster: str
    event_id: str


@dataclass(frozen=True)
class EventView:
    event: Event
    cluster: Cluster


def listed(work: Work, listing: EventListing) -> Page[EventView]:
    """A page of a continuous cluster's events.

    Raises:
        NotFound: no such cluster.
        Invalid: a classic cluster; HyperPod shows events of continuous ones only, and its clients rely on the refusal.
    """
    cluster = _cluster(work, listing.cluster)
    found = events.of_cluster(work.session, cluster.id, listing.wanted, listing.cut)
    return Page(tuple(EventView(event, cluster) for event in found.rows), found.cursor)


def describe(work: Work, choice: EventChoice) -> EventView:
    """One event of a continuous cluster.

    Raises:
        NotFound: no such cluster, or no such event of it.
        Invalid: a classic cluster.
    """
    cluster = _cluster(work, choice.cluster)
    return EventView(events.find(work.session, cluster.id, choice.event_id), cluster)


def _cluster(work: Work, name_or_arn: str) -> Cluster:
    cluster = clusters.find(work.session, name_or_arn)
    if not cluster.is_continuous:
        raise Invalid(message=f"Cluster '{cluster.name}' has no events: they need NodeProvisioningMode Continuous.")
    return cluster
