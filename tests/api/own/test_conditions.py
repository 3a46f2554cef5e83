"""Operations of nodes' health, through both doors."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from models.clock import WallClock
from models.cluster.table import InstanceGroup
from models.condition import changes
from models.condition.changes import Finding
from models.condition.states import FaultClass
from models.condition.table import RepairHold
from models.ids import new_hold_id
from models.node.changes import settle_wanted_node
from models.node.labels import HEALTH
from models.node.table import Node
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.own.conftest import Rest
from tests.api.own.test_doors import refused


@pytest.fixture
def node(job: str, sessions: Sessions) -> Node:
    """It has a fault that calls for a reboot."""
    with unit_of_work(sessions) as session:
        found = session.scalars(select(Node).order_by(Node.id)).first()
        finding = Finding("f1", FaultClass.REBOOT, "xid:73", "NvidiaErrorReboot", "XidHardwareFailure", "NVRM: Xid 73", rows.NOW)
        changes.report_fault(session, found, finding, now=rows.NOW)
        return found


def test_a_nodes_health_shows_what_is_the_matter_and_what_it_carries(ours: Any, rest: Rest, cluster: str, node: Node):
    shown = ours.describe_node_health(ClusterName=cluster, NodeId=node.instance_id)
    (condition,) = shown["Conditions"]
    assert (condition["Code"], condition["Status"], condition["FaultClass"]) == ("xid:73", "Confirmed", "reboot")
    assert shown["FaultDetails"][0]["Message"] == "NVRM: Xid 73"
    told = rest("GET", f"/v1/clusters/{cluster}/nodes/{node.logical_id}/health").json()
    assert told["Conditions"][0]["ConditionId"] == condition["ConditionId"]


def test_conditions_are_listed_page_by_page_and_only_open_ones_if_that_is_asked(ours: Any, cluster: str, node: Node):
    assert [one["Code"] for one in ours.list_node_conditions(ClusterName=cluster)["Conditions"]] == ["xid:73"]
    ours.label_cluster_node(ClusterName=cluster, NodeId=node.instance_id, Labels={HEALTH: "Schedulable"})
    assert ours.list_node_conditions(ClusterName=cluster, Open=True)["Conditions"] == []
    assert len(ours.list_node_conditions(ClusterName=cluster, NodeId=node.logical_id)["Conditions"]) == 1


def test_a_places_conditions_outlive_the_node_that_had_them(ours: Any, cluster: str, node: Node, sessions: Sessions):
    with unit_of_work(sessions) as session:
        settle_wanted_node(
            session, session.get_one(InstanceGroup, node.group_id), logical_id=node.logical_id, now=WallClock().now()
        )
    for name in (node.logical_id, node.instance_id):
        assert len(ours.list_node_conditions(ClusterName=cluster, NodeId=name)["Conditions"]) == 1, name
    with unit_of_work(sessions) as session:
        session.get_one(Node, node.id).instance_id = None
    assert len(ours.list_node_conditions(ClusterName=cluster, NodeId=node.logical_id)["Conditions"]) == 1


def test_a_label_by_hand_becomes_a_condition_of_its_own(ours: Any, cluster: str, node: Node):
    shown = ours.label_cluster_node(
        ClusterName=cluster, NodeId=node.instance_id, Labels={HEALTH: "UnschedulablePendingReplacement", "mine": "too"}
    )
    assert {one["Source"] for one in shown["Conditions"]} == {"agent", "operator"}
    assert shown["Labels"]["mine"] == "too"
    assert HEALTH not in shown["Labels"]  # its reconciler puts that on


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"Labels": {HEALTH: "Unschedulable"}}, "UnschedulablePendingReboot"),
        ({"Labels": {"sagemaker.amazonaws.com/fault-types": "x"}}, "cannot be set"),
        ({"Labels": {"not a label": "x"}}, "no label"),
        ({"Labels": {}}, "at least one label"),
        ({"Labels": {"a": "b"}, "Removed": [HEALTH]}, "always labelled"),
    ],
)
def test_a_label_that_cannot_be_is_refused_and_nothing_is_written(
    rest: Rest, cluster: str, node: Node, sessions: Sessions, asked: dict[str, Any], words: str
):
    answer = rest("POST", f"/v1/clusters/{cluster}/nodes/{node.instance_id}/labels", json=asked)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    with sessions() as session:
        assert session.get_one(Node, node.id).labels == {}


def test_repairs_that_are_held_are_resumed_once(ours: Any, cluster: str, node: Node, sessions: Sessions):
    with unit_of_work(sessions) as session:
        hold = RepairHold(
            id=new_hold_id(), cluster_id=node.cluster_id, group_id=node.group_id, why="many", created_at=rows.NOW, told_at=rows.NOW
        )
        changes.settle_hold(session, session.get_one(Node, node.id), hold, now=rows.NOW)
    assert ours.describe_node_health(ClusterName=cluster, NodeId=node.instance_id)["RepairsHeld"] == "many"
    assert "FreeUntil" in ours.resume_repairs(ClusterName=cluster, InstanceGroupName=node.group_name)
    assert refused(lambda: ours.resume_repairs(ClusterName=cluster, InstanceGroupName=node.group_name))
