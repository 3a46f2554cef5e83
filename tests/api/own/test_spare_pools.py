"""Spare pools, through both doors and from the command line."""

from __future__ import annotations

from typing import Any

import pytest

from models.cluster.table import Cluster
from models.events import Event
from models.job.changes import settle_processes
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.own.conftest import Rest
from tests.api.own.test_doors import refused


@pytest.fixture
def three(cluster: str, sessions: Sessions) -> str:
    """The cluster has three nodes that serve, one of them with a process on it."""
    with unit_of_work(sessions) as session:
        of = session.query(Cluster).filter_by(name=cluster).one()
        held = [rows.node(session, of, number=number) for number in (1, 2, 3)]
        settle_processes(session, rows.job(session, of, replicas=1), [(held[0].id, 0)], now=rows.NOW)
    return cluster


def test_a_pool_is_set_and_shown_with_what_is_free_of_it(ours: Any, rest: Rest, three: str, sessions: Sessions):
    put = ours.put_spare_pool(Cluster=three, Nodes=3)
    assert (put["InstanceGroup"], put["Nodes"], put["Auto"], put["FreeNodes"]) == ("workers", 3, False, 2)
    rest("POST", "/v1/spare-pools", json={"cluster": three, "instance_group": "workers", "nodes": 1}).raise_for_status()
    [pool] = ours.list_spare_pools(Cluster=three)["Pools"]
    assert (pool["Nodes"], pool["FreeNodes"]) == (1, 1)
    with sessions() as session:
        told = [event.description for event in session.query(Event).filter_by(name="spare pool set")]
    assert told[-1] == "Free nodes of instance group workers that are kept for what is lost: 1."


def test_a_pool_that_is_left_to_the_planner_keeps_what_it_has_until_that_has_looked(ours: Any, three: str):
    ours.put_spare_pool(Cluster=three, Nodes=2)
    found = ours.put_spare_pool(Cluster=three, Auto=True)
    assert (found["Nodes"], found["Auto"]) == (2, True)
    assert ours.put_spare_pool(Cluster=three, Nodes=0)["Auto"] is False


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "Nodes: give a number of nodes, or Auto, and not both."),
        ({"Nodes": 1, "Auto": True}, "Nodes: give a number of nodes, or Auto, and not both."),
        ({"Nodes": 5}, "Nodes: group 'workers' has 4 nodes; it cannot keep 5 of them free."),
        ({"Nodes": 1, "InstanceGroup": "none"}, "InstanceGroup: cluster c1 has no group 'none'; its groups are: workers."),
    ],
)
def test_a_pool_that_cannot_be_is_refused_by_name_and_nothing_is_written(ours: Any, three: str, asked: dict[str, Any], says: str):
    code, message = refused(ours.put_spare_pool, Cluster=three, **asked)
    assert (code, says in message) == ("ValidationException", True), message
    assert ours.list_spare_pools(Cluster=three)["Pools"][0]["Nodes"] == 0


def test_in_a_cluster_of_several_groups_the_group_has_to_be_named(ours: Any, sessions: Sessions):
    with unit_of_work(sessions) as session:
        rows.cluster(session, "c2", groups=(rows.group_spec("a", 1), rows.group_spec("b", 1)))
    _, message = refused(ours.put_spare_pool, Cluster="c2", Nodes=1)
    assert "InstanceGroup: say which; the groups of cluster c2 are: a, b." in message
    ours.put_spare_pool(Cluster="c2", InstanceGroup="b", Nodes=1)
    assert [(pool["InstanceGroup"], pool["Nodes"]) for pool in ours.list_spare_pools(Cluster="c2")["Pools"]] == [("a", 0), ("b", 1)]
