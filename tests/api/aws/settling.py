"""Plays the reconcilers' part: concludes states through the domain's own functions, so that a test of the door needs no workers."""

from __future__ import annotations

from datetime import UTC, datetime

from models.cluster import changes, queries
from models.cluster.states import ClusterState, GroupState
from models.session import Sessions, unit_of_work

NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


def settle(sessions: Sessions, name: str, *states: ClusterState, why: str = "settled by a test") -> None:
    with unit_of_work(sessions) as session:
        cluster = queries.find(session, name, lock=True)
        for state in states:
            changes.settle_cluster(session, cluster, state, why=why, now=NOW)


def as_it_comes_into_service(sessions: Sessions, name: str) -> None:
    """The cluster and all its groups reach what was asked for; groups that were to go are gone."""
    with unit_of_work(sessions) as session:
        cluster = queries.find(session, name, lock=True)
        for group in queries.groups(session, cluster.id):
            if group.state is GroupState.DELETING:
                changes.settle_group(session, cluster, group, GroupState.GONE, why="gone", now=NOW)
            elif group.state is not GroupState.IN_SERVICE:
                changes.settle_group(session, cluster, group, GroupState.IN_SERVICE, why="at target", now=NOW)
        if cluster.state is not ClusterState.IN_SERVICE:
            changes.settle_cluster(session, cluster, ClusterState.IN_SERVICE, why="in service", now=NOW)
        changes.settle_operations(session, cluster, now=NOW)
