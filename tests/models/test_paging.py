from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from models import events
from models.cluster import queries as clusters
from models.cluster.queries import ClusterFilter
from models.errors import Invalid
from models.events import About, EventFilter
from models.ids import ClusterId, JobId
from models.node import queries as nodes
from models.node.queries import NodeFilter
from models.paging import Cut
from tests import rows

NOW = rows.NOW
SECOND = timedelta(seconds=1)
everything = ClusterFilter()


def walk(session: Session, *, limit: int, is_descending: bool, by_name: bool) -> list[str]:
    """The names on all pages, one after the other."""
    found: list[str] = []
    cursor = None
    for _ in range(100):
        page = clusters.listed(session, everything, Cut(limit, is_descending, cursor), by_name=by_name)
        assert len(page.rows) <= limit
        found += [row.name for row in page.rows]
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    made=st.lists(
        st.tuples(st.text("abAB-9", min_size=1, max_size=4), st.integers(0, 3)), unique_by=lambda pair: pair[0], max_size=8
    ),
    limit=st.integers(1, 5),
    is_descending=st.booleans(),
    by_name=st.booleans(),
)
def test_the_pages_of_a_listing_hold_every_row_once_and_in_order(
    session: Session, made: list[tuple[str, int]], limit: int, is_descending: bool, by_name: bool
) -> None:
    with session.begin_nested() as attempt:
        for name, second in made:
            rows.cluster(session, name).created_at = NOW + second * SECOND
        session.flush()
        found = walk(session, limit=limit, is_descending=is_descending, by_name=by_name)
        created = dict(made)
        key = [name if by_name else created[name] for name in found]
        attempt.rollback()
    assert sorted(found) == sorted(created)
    assert key == sorted(key, reverse=is_descending)


def test_a_row_that_comes_between_two_pages_hides_none(session: Session) -> None:
    for name in ("b", "d", "f"):
        rows.cluster(session, name)
    first = clusters.listed(session, everything, Cut(2), by_name=True)
    rows.cluster(session, "a")
    second = clusters.listed(session, everything, Cut(2, cursor=first.cursor), by_name=True)
    assert [row.name for row in (*first.rows, *second.rows)] == ["b", "d", "f"]


@pytest.mark.parametrize("cursor", ["", "nonsense", "[]", "7", json.dumps(["not a time", "x", True]), json.dumps(["a", "b"])])
def test_a_cursor_that_is_none_of_ours_is_refused(session: Session, cursor: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        clusters.listed(session, everything, Cut(2, cursor=cursor))


def test_clusters_are_filtered_by_name_and_by_time_with_exclusive_bounds(session: Session) -> None:
    for second, name in enumerate(("train-a", "train_b", "eval%", "gone")):
        rows.cluster(session, name).created_at = NOW + second * SECOND
    rows.end_cluster(session, clusters.find(session, "gone"))

    def names(**wanted: object) -> list[str]:
        return [row.name for row in clusters.listed(session, ClusterFilter(**wanted), Cut(10)).rows]

    assert names() == ["train-a", "train_b", "eval%"]
    assert names(name_contains="train") == ["train-a", "train_b"]
    assert names(name_contains="%") == ["eval%"]
    assert names(name_contains="_") == ["train_b"]
    assert names(created_after=NOW) == ["train_b", "eval%"]
    assert names(created_before=NOW + 2 * SECOND, created_after=NOW) == ["train_b"]


def test_nodes_are_listed_without_those_that_are_gone(session: Session) -> None:
    cluster = rows.cluster(session)
    first, second, third = rows.nodes(session, cluster, 3)
    rows.release(session, second)
    found = nodes.listed(session, cluster.id, NodeFilter(), Cut(10)).rows
    assert {node.id for node in found} == {first.id, third.id}
    assert nodes.listed(session, cluster.id, NodeFilter(group_contains="nothing"), Cut(10)).rows == ()
    assert nodes.current_counts(session, cluster.id) == {first.group_id: 2}


def test_the_newest_node_of_a_place_stands_for_it(session: Session) -> None:
    cluster = rows.cluster(session)
    old = rows.node(session, cluster, number=1)
    group = clusters.groups(session, cluster.id)[0]
    new = rows.settle_wanted_node(session, group, logical_id=old.logical_id, now=NOW + SECOND)
    assert nodes.of_place(session, cluster.id, logical_id=old.logical_id) is new
    assert nodes.of_place(session, cluster.id, instance_id=old.instance_id) is old
    assert nodes.of_places(session, cluster.id) == [new]


def test_a_clusters_events_are_told_without_those_of_its_jobs(session: Session) -> None:
    cluster = ClusterId("c-1")
    for second, about in enumerate((About.CLUSTER, About.GROUP, About.JOB, About.INSTANCE)):
        events.record(
            session,
            f"{about} event",
            "",
            about=about,
            cluster_id=cluster,
            job_id=JobId("j"),
            group_name="g",
            now=NOW + second * SECOND,
        )
    session.flush()

    def found(**wanted: object) -> list[str]:
        return [event.about for event in events.of_cluster(session, cluster, EventFilter(**wanted), Cut(10)).rows]

    assert found() == ["Cluster", "InstanceGroup", "Instance"]
    assert found(about=About.GROUP) == ["InstanceGroup"]
    assert found(after=NOW, before=NOW + 3 * SECOND) == ["InstanceGroup"]
    assert len(events.of_job(session, JobId("j"))) == 4
