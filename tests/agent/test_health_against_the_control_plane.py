"""Real agents tell what is the matter with their nodes, over their streams and through outages of the control plane."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

from agent.accelerators.simulated import Script
from models.access.secrets import boot_token
from models.clock import WallClock
from models.cluster import queries as clusters
from models.condition import queries as conditions
from models.condition.table import Condition
from models.health import queries as health
from models.health.changes import Wish, request_health_check
from models.health.states import CheckKind, CheckState
from models.node import labels
from models.node import queries as nodes
from models.node.changes import settle_node
from models.node.states import NodeState, Schedulability
from models.operation.queries import open_of_cluster
from models.operation.states import OperationKind
from models.session import Sessions, unit_of_work
from tests import rows
from tests.live import MASTER_KEY, ApiProcess, Place, ThreadedApi, host, wait_for
from tests.patience import LOW_FLOORS
from workers.driver import Driver
from workers.reconcilers.health import HealthReconciler
from workers.reconcilers.node import NodeReconciler

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


def test_what_an_agent_found_while_the_control_plane_was_away_is_applied_in_order_when_it_is_back(
    api_process: ApiProcess, place: Place, sessions: Sessions, tmp_path: Path
) -> None:
    """AG-8. The agent dies in the outage, too, after the first two: what it has found is kept on its disk."""
    seen = [(95, 0), (74, 1), (79, 2)]
    with host(
        api_process.url, place, tmp_path / "host", EVERSTEP_ACCELERATORS="simulated:nvidia", EVERSTEP_SIMULATED_DEVICES="4"
    ) as hosted:
        hosted.start()
        wait_for(lambda: _state(sessions, place) is NodeState.CHECKING, 20)
        wait_for(lambda: (hosted.state / "accelerators" / "watch.json").exists())
        api_process.stop(signal.SIGKILL)
        for code, device in seen:
            Script(hosted.state).xid(code, device)
            wait_for(lambda code=code: f"accelerator fault xid:{code}" in hosted.log.read_text(), 20)
            if code == 74:
                hosted.stop(signal.SIGKILL)
                hosted.start()
        assert _conditions(sessions, place) == []
        api_process.start()
        wait_for(lambda: len(_conditions(sessions, place)) >= len(seen), 30)
    told = _conditions(sessions, place)
    assert [(one.code, str(one.device)[-1]) for one in told] == [(f"xid:{code}", str(device)) for code, device in seen]
    assert [one.seen for one in told] == [1, 1, 1]
    driver = Driver(sessions, WallClock(), "test", {"node": NodeReconciler()})
    driver.reconcile("node", place.node_id)
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id)
        assert node.labels[labels.HEALTH] == Schedulability.PENDING_REPLACEMENT.value
        assert [taint["Key"] for taint in node.taints] == [labels.HEALTH]


def _conditions(sessions: Sessions, place: Place) -> list[Condition]:
    with sessions() as session:
        return conditions.open_of(session, place.node_id)


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
