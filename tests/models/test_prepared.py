"""One statement in two ways: what psycopg reads past SQLAlchemy is what SQLAlchemy would have read."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.access import scope
from models.cluster import queries
from models.cluster.states import ClusterState, GroupState
from models.errors import NotFound
from models.node.described import described
from models.node.states import NodeState
from models.session import Sessions, connect, sessions, unit_of_work
from tests import rows


@pytest.fixture
def readers(database_url: str):
    engine = connect(database_url, pool_size=1, is_reading=True)
    yield sessions(engine)
    engine.dispose()


@pytest.fixture
def cluster(sessions: Sessions) -> str:
    """Its first group serves with two nodes of three, its third is gone."""
    groups = (rows.group_spec("b", 3), rows.group_spec("a", 1), rows.group_spec("c", 1))
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session, "it's 100 %", groups=groups, team="red", settings={"NodeRecovery": "Automatic"})
        for number, state in enumerate((NodeState.READY, NodeState.READY, NodeState.BOOTING), start=1):
            rows.node(session, cluster, number=number, state=state)
        last = queries.groups(session, cluster.id)[-1]
        rows.settle_group(session, cluster, last, GroupState.DELETING)
        rows.settle_group(session, cluster, last, GroupState.GONE)
        return cluster.arn


def test_both_ways_tell_the_same_of_a_cluster(sessions: Sessions, readers: Sessions, cluster: str) -> None:
    for name in (cluster, "it's 100 %"):
        with readers() as fast, sessions() as slow:
            seen = described(fast, name)
            assert seen == described(slow, name)
    assert (seen.cluster.state, seen.cluster.settings) == (ClusterState.CREATING, {"NodeRecovery": "Automatic"})
    assert [(group.name, group.state, group.target_count, group.serving) for group in seen.groups] == [
        ("b", GroupState.CREATING, 3, 2),
        ("a", GroupState.CREATING, 1, 0),
    ]


@pytest.mark.parametrize("name", ["nobody", "it's 100", "%(value)s", "' or true --"])
def test_a_name_is_a_value_and_nothing_else(sessions: Sessions, readers: Sessions, cluster: str, name: str) -> None:
    for factory in (sessions, readers):
        with factory() as session, pytest.raises(NotFound):
            described(session, name)


def test_a_team_sees_through_a_reader_what_it_may_and_no_more(readers: Sessions, cluster: str) -> None:
    with readers() as session:
        scope.bind(session, "red")
        assert [group.serving for group in described(session, cluster).groups] == [2, 0]
    with readers() as session:
        scope.bind(session, "blue")
        with pytest.raises(NotFound):
            described(session, cluster)


def test_what_was_committed_is_seen_by_the_next_reader(sessions: Sessions, readers: Sessions, cluster: str) -> None:
    with readers() as session:
        before = described(session, cluster)
    with unit_of_work(sessions) as session:
        session.execute(text("UPDATE instance_group SET target_count = 9 WHERE name = 'a'"))
    with readers() as session:
        after = described(session, cluster)
    assert [group.target_count for group in before.groups] == [3, 1]
    assert [group.target_count for group in after.groups] == [3, 9]


def test_a_cut_connection_is_replaced_before_it_is_used(sessions: Sessions, readers: Sessions, cluster: str) -> None:
    with readers() as session:
        first = session.scalar(text("SELECT pg_backend_pid()"))
    with sessions() as session:
        assert session.scalar(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": first})
    with readers() as session:
        assert described(session, cluster).cluster.arn == cluster
        assert session.scalar(text("SELECT pg_backend_pid()")) != first


def test_an_error_of_the_server_reads_as_those_that_are_worth_another_try(
    sessions: Sessions, readers: Sessions, cluster: str
) -> None:
    with unit_of_work(sessions) as session, readers() as reading:
        reading.execute(text("SET statement_timeout = 100"))
        reading.close()
        session.execute(text("LOCK TABLE cluster"))
        with pytest.raises(OperationalError):
            described(reading, cluster)
