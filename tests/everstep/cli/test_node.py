"""``everstep node spares`` as a user types it, against a real API."""

from __future__ import annotations

import json

import pytest

from models.cluster.table import Cluster
from models.node import queries as nodes
from models.session import Sessions
from tests.everstep.cli.conftest import Type
from tests.live import Place


@pytest.fixture
def cluster(place: Place, sessions: Sessions) -> str:
    with sessions() as session:
        return session.get_one(Cluster, nodes.get(session, place.node_id).cluster_id).name


def test_a_spare_pool_is_set_left_to_the_planner_and_shown(type_: Type, cluster: str):
    [pool] = json.loads(type_("node", "spares", cluster, "--keep", 1, "--json").stdout)["pools"]
    assert (pool["nodes"], pool["auto"]) == (1, False)
    shown = type_("node", "spares", cluster, "--group", pool["instance_group"], "--keep", "auto").stdout
    assert shown.splitlines()[0].split() == ["group", "kept", "free", "free", "now", "by"]
    assert shown.splitlines()[1].split() == [pool["instance_group"], "1", "0", "planner"]
    assert type_("node", "spares", cluster).stdout == shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--keep", "many"), "--keep 'many' is no number of nodes, and not auto"),
        (("--keep", "1", "--group", "none"), "has no group 'none'"),
        (("--keep", "1000"), "it cannot keep 1000 of them free"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_in_one_line(type_: Type, cluster: str, words: tuple[str, ...], says: str):
    ended = type_("node", "spares", cluster, *words)
    assert ended.exit_code == 2
    assert says in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
