"""Nodes and events through an unmodified boto3 client."""

from __future__ import annotations

from datetime import timedelta

import pytest
from botocore.exceptions import ClientError

from models.node import queries
from models.node.changes import Arrival, report_registered, settle_node
from models.node.states import NodeState
from models.node.wishes import request_reimage, settle_restart
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.installed import knows
from tests.api.serving import group

LABELS = {"Labels": {"team": "one"}}


@pytest.fixture
def nodes(sagemaker, sessions: Sessions) -> list[str]:
    """Five running nodes of cluster c1, a minute apart; returns their instance ids."""
    wish = {"CapacityRequirements": {"Spot": {}}, "KubernetesConfig": LABELS}
    sagemaker.create_cluster(ClusterName="c1", InstanceGroups=[group(count=5, **wish)], NodeProvisioningMode="Continuous")
    with unit_of_work(sessions) as session:
        cluster = rows.clusters.find(session, "c1")
        made = [
            rows.node(session, cluster, number=number, now=rows.NOW + timedelta(minutes=number)).instance_id
            for number in range(1, 6)
        ]
    return [str(instance_id) for instance_id in made]


def test_running_nodes_count_as_current(sagemaker, nodes):
    (shown,) = sagemaker.describe_cluster(ClusterName="c1")["InstanceGroups"]
    assert (shown["CurrentCount"], shown["TargetCount"]) == (5, 5)


def test_a_node_that_starts_anew_goes_on_counting_and_a_new_one_counts_once_it_serves(sagemaker, sessions: Sessions, nodes):
    def counted() -> tuple[int, int]:
        with unit_of_work(sessions) as session:
            cluster = rows.clusters.find(session, "c1")
            (told,) = queries.current_counts(session, cluster.id).values()
        return told, sagemaker.describe_cluster(ClusterName="c1")["InstanceGroups"][0]["CurrentCount"]

    with unit_of_work(sessions) as session:
        rows.node(session, rows.clusters.find(session, "c1"), number=6, state=NodeState.CHECKING)
        node_id = queries.by_instance(session, nodes[0]).id
    for step in (NodeState.READY, NodeState.DRAINING, NodeState.UPDATING, NodeState.CHECKING):
        with unit_of_work(sessions) as session:
            node = queries.get(session, node_id, lock=True)
            match step:
                case NodeState.READY:
                    request_reimage(session, node, image="2.0.0", why="a test", now=rows.NOW)
                case NodeState.DRAINING:
                    settle_node(session, node, step, why="Asked for.", now=rows.NOW)
                case NodeState.UPDATING:
                    settle_restart(session, node, why="Drained.", now=rows.NOW)
                case NodeState.CHECKING:
                    arrival = Arrival(boot="boot-2", address="127.77.0.1", rendezvous_port=29500, facts={}, start=1)
                    report_registered(session, node, arrival, node_token="token-2", now=rows.NOW)
            assert node.state is step
        assert counted() == (5, 5), step


@pytest.mark.parametrize("sort", ["CREATION_TIME", "NAME"])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_pages_show_each_node_once(sagemaker, nodes, size, sort):
    pages = sagemaker.get_paginator("list_cluster_nodes").paginate(
        ClusterName="c1", SortBy=sort, PaginationConfig={"PageSize": size}
    )
    shown = [node["InstanceId"] for page in pages for node in page["ClusterNodeSummaries"]]
    assert sorted(shown) == sorted(nodes)
    assert sort == "NAME" or shown == nodes


def test_a_descending_listing_starts_with_the_newest(sagemaker, nodes):
    shown = sagemaker.list_cluster_nodes(ClusterName="c1", SortOrder="Descending")["ClusterNodeSummaries"]
    assert [node["InstanceId"] for node in shown] == nodes[::-1]


def test_bounds_in_time_and_group_names_filter(sagemaker, nodes):
    def ids(**members) -> list[str]:
        return [n["InstanceId"] for n in sagemaker.list_cluster_nodes(ClusterName="c1", **members)["ClusterNodeSummaries"]]

    assert ids(CreationTimeAfter=rows.NOW + timedelta(minutes=2)) == nodes[2:]
    assert ids(CreationTimeBefore=rows.NOW + timedelta(minutes=2)) == nodes[:1]
    assert ids(InstanceGroupNameContains="orker") == nodes
    assert ids(InstanceGroupNameContains="other") == []


def test_a_node_without_an_instance_shows_only_with_logical_ids(sagemaker, nodes, sessions: Sessions):
    with unit_of_work(sessions) as session:
        rows.node(session, rows.clusters.find(session, "c1"), state=NodeState.REQUESTED, now=rows.NOW + timedelta(hours=1))
    assert all("NodeLogicalId" not in n for n in sagemaker.list_cluster_nodes(ClusterName="c1")["ClusterNodeSummaries"])
    shown = sagemaker.list_cluster_nodes(ClusterName="c1", IncludeNodeLogicalIds=True)["ClusterNodeSummaries"]
    assert len(shown) == 6
    assert (shown[-1]["InstanceId"], shown[-1]["InstanceStatus"]) == ("", {"Status": "Pending"})
    assert len({node["NodeLogicalId"] for node in shown}) == 6


def test_a_node_is_described_by_either_id(sagemaker, nodes):
    by_instance = sagemaker.describe_cluster_node(ClusterName="c1", NodeId=nodes[0])["NodeDetails"]
    by_place = sagemaker.describe_cluster_node(ClusterName="c1", NodeLogicalId=by_instance["NodeLogicalId"])["NodeDetails"]
    assert by_instance == by_place
    assert by_instance["InstanceStatus"] == {"Status": "Running"}
    assert by_instance["PrivatePrimaryIp"] == "127.77.0.1"
    assert by_instance["CapacityType"] == "Spot"
    assert by_instance["KubernetesConfig"] == {"CurrentLabels": LABELS["Labels"], "DesiredLabels": LABELS["Labels"]}


@pytest.mark.parametrize("ids", [{}, {"NodeId": "i-00000000000000001", "NodeLogicalId": "place"}])
def test_a_node_is_named_by_exactly_one_id(sagemaker, nodes, ids):
    with pytest.raises(ClientError, match="exactly one of NodeId and NodeLogicalId"):
        sagemaker.describe_cluster_node(ClusterName="c1", **ids)


def test_a_node_of_another_cluster_does_not_exist_in_this_one(sagemaker, nodes):
    sagemaker.create_cluster(ClusterName="c2", InstanceGroups=[group()])
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match=f"Node '{nodes[0]}' does not exist"):
        sagemaker.describe_cluster_node(ClusterName="c2", NodeId=nodes[0])


@pytest.mark.usefixtures("nodes")
class TestEvents:
    def test_the_newest_comes_first_unless_asked_otherwise(self, sagemaker):
        newest = sagemaker.list_cluster_events(ClusterName="c1")["Events"]
        oldest = sagemaker.list_cluster_events(ClusterName="c1", SortOrder="Ascending")["Events"]
        assert [e["EventId"] for e in newest] == [e["EventId"] for e in oldest][::-1]
        assert [e["EventTime"] for e in newest] == sorted((e["EventTime"] for e in newest), reverse=True)

    def test_pages_show_each_event_once_even_where_times_tie(self, sagemaker):
        pages = sagemaker.get_paginator("list_cluster_events").paginate(ClusterName="c1", PaginationConfig={"PageSize": 2})
        ids = [event["EventId"] for page in pages for event in page["Events"]]
        assert len(ids) == len(set(ids)) == len(sagemaker.list_cluster_events(ClusterName="c1")["Events"])

    def test_filters_narrow_what_is_listed(self, sagemaker, nodes):
        def events(**members):
            return sagemaker.list_cluster_events(ClusterName="c1", **members)["Events"]

        assert {e["ResourceType"] for e in events(ResourceType="Cluster")} == {"Cluster"}
        assert {e["InstanceId"] for e in events(NodeId=nodes[1])} == {nodes[1]}
        assert {e["InstanceGroupName"] for e in events(InstanceGroupName="workers")} == {"workers"}
        assert events(EventTimeAfter="2100-01-01") == []
        if knows("ListClusterEvents", "OperationId"):
            assert events(OperationId="00000000-0000-0000-0000-000000000000") == []

    def test_a_classic_cluster_shows_none_and_says_why(self, sagemaker):
        sagemaker.create_cluster(ClusterName="classic", InstanceGroups=[group()])
        with pytest.raises(ClientError, match="Continuous") as refused:
            sagemaker.list_cluster_events(ClusterName="classic")
        assert refused.value.response["Error"]["Code"] == "ValidationException"
