"""Random walks through updates of software: nodes die, releases are bad, alarms ring; every update ends, and with all nodes on one release."""

from __future__ import annotations

import random

import pytest

from models.alarm.changes import report_alarm
from models.alarm.states import AlarmState
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.node.states import NodeState
from models.session import unit_of_work
from models.software import queries as software
from models.software.changes import GroupWish, request_software

NEW = "2.0.0"
DEPLOYMENT = {
    "RollingUpdatePolicy": {
        "MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1},
        "RollbackMaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 50},
    },
    "WaitIntervalInSeconds": 3,
    "AutoRollbackConfiguration": [{"AlarmName": "errors"}],
}


def ask(plane, cluster_id: str) -> None:
    with unit_of_work(plane.sessions) as session:
        cluster = clusters.get(session, cluster_id, lock=True)
        (group,) = clusters.groups(session, cluster_id)
        request_software(session, cluster, [GroupWish(group, NEW, deployment=DEPLOYMENT)], cause="a walk", now=plane.clock.at)


def is_over(plane, cluster_id: str) -> bool:
    with unit_of_work(plane.sessions) as session:
        return software.open_of_cluster(session, cluster_id) is None


def disturb(plane, cluster_id: str, chance: random.Random) -> None:
    match chance.choice(("die", "bad", "alarm", "nothing", "nothing")):
        case "die":
            serving = [node for node in plane.nodes(cluster_id) if node.state is NodeState.READY and node.is_wanted]
            if len(serving) > 1:
                plane.die(chance.choice(serving).instance_id)
        case "bad":
            plane.bad_images = {NEW: chance.choice((0, 0, 3))}
        case "alarm":
            with unit_of_work(plane.sessions) as session:
                state = chance.choice((AlarmState.OK, AlarmState.OK, AlarmState.ALARM))
                report_alarm(session, "errors", state, reason="a walk", now=plane.clock.at)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))])
def test_whatever_happens_an_update_ends_with_every_node_on_one_release(plane, seed):
    chance = random.Random(seed)
    cluster_id = plane.serving(3, is_continuous=True)
    ask(plane, cluster_id)
    for _ in range(12):
        plane.run(chance.uniform(0.5, 3))
        if is_over(plane, cluster_id):
            break
        disturb(plane, cluster_id, chance)
    plane.bad_images = {}
    plane.run_until(lambda: is_over(plane, cluster_id), 1200)  # a host that died on its way back is waited for as one that is slow
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * 3 and plane.states()["group"] == ["in_service"], 300)
    with unit_of_work(plane.sessions) as session:
        (group,) = clusters.groups(session, cluster_id)
        assert group.image == group.image_wanted
    assert {node.image for node in plane.nodes(cluster_id)} == {group.image_wanted}
    assert {node.held_for for node in plane.nodes(cluster_id)} == {None}
    assert plane.cluster_state(cluster_id) is ClusterState.IN_SERVICE
