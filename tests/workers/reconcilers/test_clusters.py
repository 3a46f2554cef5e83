from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from models.cluster import queries as clusters
from models.cluster.changes import request_update
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.events import Event
from models.node.states import NodeState
from models.node.table import Node
from models.operation.table import Operation
from models.session import unit_of_work
from tests import rows


def resize(plane, cluster_id, count):
    with unit_of_work(plane.sessions) as session:
        name = session.get_one(Cluster, cluster_id).name
        cluster = clusters.find(session, name, lock=True)
        request_update(session, cluster, groups=[rows.group_spec(count=count)], to_delete=[], settings={}, now=plane.clock.at)


def test_a_cluster_comes_up_and_goes_down(plane):
    cluster_id = plane.serving(3)
    assert plane.states()["group"] == ["in_service"]
    assert len(plane.provider.hosts()) == 3
    with unit_of_work(plane.sessions) as session:
        assert [str(operation.state) for operation in session.scalars(select(Operation))] == ["done"]
    plane.delete_cluster(cluster_id)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.DELETED)
    assert plane.provider.hosts() == ()
    assert plane.work() == 0


def test_a_settled_cluster_is_left_alone(plane):
    plane.serving(2)
    before = len(plane.provider.hosts())
    plane.run(60)
    assert len(plane.provider.hosts()) == before
    with unit_of_work(plane.sessions) as session:
        latest = session.scalars(select(Event).order_by(Event.sequence.desc()).limit(1)).one()
        assert latest.name == "cluster in_service"


def test_hosts_carry_the_tags_of_their_cluster_and_place(plane):
    cluster_id = plane.serving(1)
    (node,) = plane.nodes(cluster_id)
    (host,) = plane.provider.hosts()
    assert host.tags == {"everstep:cluster": "c1", "everstep:node": node.logical_id, "everstep:claim": node.id}


def test_a_cluster_scales_up_and_down(plane):
    cluster_id = plane.serving(2)
    resize(plane, cluster_id, 4)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.IN_SERVICE)
    assert plane.states()["node"] == ["ready"] * 4
    resize(plane, cluster_id, 1)
    plane.run_until(lambda: len(plane.provider.hosts()) == 1)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.IN_SERVICE)


def test_scaling_down_spares_the_nodes_that_train(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, replicas=2, spares=0)
    resize(plane, cluster_id, 2)
    plane.run_until(lambda: len(plane.provider.hosts()) == 2)
    assert {process.node_id for process in plane.members(job_id)} == {node.id for node in plane.nodes(cluster_id)}
    assert len(plane.generations(job_id)) == 1


def test_without_capacity_a_classic_creation_is_undone_and_says_why(plane):
    plane.provider.capacity = 2
    cluster_id = plane.cluster(3)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.FAILED)
    with unit_of_work(plane.sessions) as session:
        assert "all 2 hosts are in use" in session.get_one(Cluster, cluster_id).failure_message
    assert plane.provider.hosts() == ()


def test_without_capacity_a_classic_update_is_undone(plane):
    plane.provider.capacity = 3
    cluster_id = plane.serving(2)
    resize(plane, cluster_id, 5)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.IN_SERVICE)
    plane.run_until(lambda: len(plane.provider.hosts()) == 2)
    with unit_of_work(plane.sessions) as session:
        cluster = session.get_one(Cluster, cluster_id)
        assert clusters.groups(session, cluster_id)[0].target_count == 2
        assert "cannot be provisioned" in cluster.failure_message


def test_a_continuous_cluster_gets_its_nodes_when_capacity_returns(plane):
    plane.provider.capacity = 1
    cluster_id = plane.cluster(2, is_continuous=True)
    plane.run(10)
    assert plane.cluster_state(cluster_id) is ClusterState.IN_SERVICE
    assert sorted(plane.states()["node"]) == ["ready", "requested"]
    plane.provider.capacity = 2
    plane.run_until(lambda: plane.states()["node"] == ["ready", "ready"])


def test_a_lifecycle_script_that_always_fails_fails_a_classic_creation(plane):
    plane.lifecycle_exit = 3
    cluster_id = plane.cluster(1)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.FAILED)
    with unit_of_work(plane.sessions) as session:
        assert "Lifecycle script failed with exit code 3" in session.get_one(Cluster, cluster_id).failure_message


def test_a_lifecycle_script_that_recovers_lets_a_continuous_cluster_go_on_in_the_same_place(plane):
    plane.lifecycle_exit = 3
    cluster_id = plane.cluster(1, is_continuous=True)
    plane.run(2)
    plane.lifecycle_exit = 0
    plane.run_until(lambda: plane.states()["node"] == ["ready"])
    with unit_of_work(plane.sessions) as session:
        everything = session.scalars(select(Node).where(Node.cluster_id == cluster_id)).all()
    assert len({node.logical_id for node in everything}) == 1
    assert len(everything) > 1


def test_a_dead_host_is_replaced_under_its_logical_id_in_seconds(plane):
    cluster_id = plane.serving(3)
    victim = plane.nodes(cluster_id)[1]
    plane.die(victim.instance_id)
    plane.run(6)
    assert plane.states()["node"] == ["ready"] * 3
    replacement = next(node for node in plane.nodes(cluster_id) if node.logical_id == victim.logical_id)
    assert replacement.instance_id != victim.instance_id
    assert plane.node(victim.id).state is NodeState.GONE
    assert plane.states()["group"] == ["in_service"]


def test_a_silent_agent_costs_nothing_when_it_speaks_again(plane):
    cluster_id = plane.serving(2)
    victim = plane.nodes(cluster_id)[0]
    plane.silence(victim.instance_id)
    plane.run(10)
    assert plane.node(victim.id).state is NodeState.SUSPECT
    plane.speak_again(victim.instance_id)
    plane.run(3)
    assert plane.node(victim.id).state is NodeState.READY
    assert len(plane.provider.hosts()) == 2


def test_a_silent_agent_is_replaced_after_its_patience(plane):
    cluster_id = plane.serving(2)
    victim = plane.nodes(cluster_id)[0]
    plane.silence(victim.instance_id)
    plane.run(29)
    assert plane.node(victim.id).state is NodeState.SUSPECT
    plane.run(10)
    assert plane.node(victim.id).state is NodeState.GONE
    assert "silent" in plane.node(victim.id).lost_because
    plane.run_until(lambda: plane.states()["node"] == ["ready", "ready"])


def test_a_control_plane_that_was_away_loses_none_of_its_nodes(plane):
    """Agents come back within seconds, but a worker may look first."""
    cluster_id = plane.serving(3)
    before = {node.instance_id for node in plane.nodes(cluster_id)}
    plane.listen()
    plane.clock.at += timedelta(minutes=10)
    plane.look_at_nodes()
    plane.listen()
    plane.look_at_nodes()
    plane.run(3)
    assert plane.states()["node"] == ["ready"] * 3
    assert {node.instance_id for node in plane.nodes(cluster_id)} == before


def test_deleting_a_cluster_while_it_comes_up_leaves_nothing(plane):
    cluster_id = plane.cluster(3)
    plane.work()
    plane.delete_cluster(cluster_id)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.DELETED)
    assert plane.provider.hosts() == ()


def test_a_host_is_released_until_its_provider_knows_it_no_longer(plane):
    plane.provider.releases = 3
    cluster_id = plane.serving(1)
    plane.delete_cluster(cluster_id)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.DELETED)
    assert plane.provider.hosts() == ()
