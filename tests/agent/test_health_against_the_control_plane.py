"""Two real agents are asked for their health over their streams, measure the way to each other, and tell what they found."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from models.access.secrets import boot_token
from models.clock import WallClock
from models.cluster import queries as clusters
from models.health import queries as health
from models.health.changes import Wish, request_health_check
from models.health.states import CheckKind, CheckState
from models.node import queries as nodes
from models.node.changes import settle_node
from models.node.states import NodeState
from models.operation.queries import open_of_cluster
from models.operation.states import OperationKind
from models.session import Sessions, unit_of_work
from tests import rows
from tests.live import MASTER_KEY, Place, ThreadedApi, host, wait_for
from tests.patience import LOW_FLOORS
from workers.driver import Driver
from workers.reconcilers.health import HealthReconciler

QUICK = {**LOW_FLOORS, "EVERSTEP_HEALTH_STRESS_S": "0.05", "EVERSTEP_HEALTH_LINK_MIB": "1", "EVERSTEP_HEALTH_DISK_MIB": "1"}


def _places(sessions: Sessions) -> list[Place]:
    now = WallClock().now()
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session, is_continuous=True)
        made = [rows.node(session, cluster, number=number, state=NodeState.BOOTING, now=now) for number in (1, 2)]
        return [Place(node.id, str(node.instance_id), boot_token(MASTER_KEY, node.id)) for node in made]


def test_agents_examine_their_nodes_and_the_links_between_them(api: ThreadedApi, sessions: Sessions, tmp_path: Path) -> None:
    places = _places(sessions)
    driver = Driver(sessions, WallClock(), "test", {"health": HealthReconciler()})
    with ExitStack() as running:
        for number, place in enumerate(places):
            running.enter_context(host(api.url, place, tmp_path / str(number), **QUICK)).start()
        for place in places:
            wait_for(lambda place=place: _state(sessions, place) is NodeState.CHECKING, 20)
        check_id = _asked(sessions, places)
        driver.reconcile("health", check_id)
        wait_for(lambda: all(check.state is not CheckState.ASKED for check in _checks(sessions, check_id)), 30)
    found = _checks(sessions, check_id)
    assert [check.state for check in found] == [CheckState.PASSED] * 2, [check.why for check in found]
    assert all({finding["kind"] for finding in check.findings} == {"InstanceStress", "InstanceConnectivity"} for check in found)
    assert all("1 peers" in str(check.why) for check in found)
    for _ in range(2):
        driver.reconcile("health", check_id)
    with unit_of_work(sessions) as session:
        assert open_of_cluster(session, nodes.get(session, places[0].node_id).cluster_id, (OperationKind.HEALTH_CHECK,)) == []
        assert [nodes.get(session, place.node_id).held_for for place in places] == [None, None]


def _asked(sessions: Sessions, places: list[Place]) -> str:
    with unit_of_work(sessions) as session:
        made = [nodes.get(session, node_id, lock=True) for node_id in sorted(place.node_id for place in places)]
        for node in made:
            settle_node(session, node, NodeState.READY, why="The test says so.", now=WallClock().now())
        cluster = clusters.get(session, made[0].cluster_id, lock=True)
        wishes = [Wish(node, (CheckKind.STRESS, CheckKind.CONNECTIVITY)) for node in made]
        return request_health_check(session, cluster, wishes, asked=[], now=WallClock().now()).id


def _checks(sessions: Sessions, check_id: str) -> list[health.NodeCheck]:
    with unit_of_work(sessions) as session:
        return health.of_check(session, check_id)


def _state(sessions: Sessions, place: Place) -> NodeState:
    with unit_of_work(sessions) as session:
        return NodeState(nodes.get(session, place.node_id).state)
