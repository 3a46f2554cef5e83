"""What nodes are told of their memory tiers, and what telling a thousand of them costs."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from api.operations import tiers
from api.operations.tiers import Commons
from everstep.tiers import Retention, TierPlan
from models.access.secrets import namespace_token, tier_secret
from models.checkpoint import changes as checkpoints
from models.checkpoint import queries
from models.checkpoint.states import ExportFormat
from models.cluster import changes as clusters
from models.cluster.table import Cluster
from models.fault.changes import request_outage
from models.job.changes import settle_processes
from models.job.states import JobState
from models.job.table import Job
from models.node.changes import settle_lost, settle_node
from models.node.states import NodeState
from models.node.table import Node
from models.registry import metadata
from models.session import Sessions, unit_of_work
from tests import rows

NOW = rows.NOW
ON: dict[str, Any] = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 30}


def at(seconds: float) -> Any:
    return NOW + timedelta(seconds=seconds)


def plan(session: Session, node: Node, commons: Commons | None = None, *, seconds: float = 0.0) -> TierPlan | None:
    """The plan, which has to be the same as the line that is written of it."""
    session.flush()
    commons = commons or Commons(rows.MASTER_KEY)
    made, line = (tell(session, node.id, commons, now=at(seconds)) for tell in (tiers.plan, tiers.line))
    assert line == (made and (made.number, made.to_wire()))
    return made


def with_tier(session: Session, config: dict[str, Any] | None = None, **changes: Any) -> Cluster:
    return rows.cluster(session, is_continuous=True, settings={"TieredStorageConfig": config or ON}, **changes)


def switched(session: Session, cluster: Cluster, config: dict[str, Any]) -> None:
    rows.settle_cluster(session, cluster, rows.ClusterState.IN_SERVICE) if cluster.state is rows.ClusterState.CREATING else None
    clusters.request_update(session, cluster, groups=(), to_delete=(), settings={"TieredStorageConfig": config}, now=NOW)


def running(session: Session, on: Node, spec: dict[str, Any] | None = None) -> Job:
    """A job with a process on the node, and a namespace of its own."""
    job = rows.job(session, session.get_one(Cluster, on.cluster_id), spec={"command": ["x"]} | (spec or {}))
    settle_processes(session, job, [(on.id, 0)], now=NOW)
    rows.namespace(session, job, (spec or {}).get("checkpoint", {}).get("namespace"))
    return job


def test_a_cluster_that_never_had_a_tier_and_saves_nothing_is_told_nothing(session: Session):
    assert plan(session, rows.node(session, rows.cluster(session))) is None


@pytest.mark.parametrize(
    ("config", "percent"),
    [(ON, 30), ({"Mode": "Enable"}, 20), ({"Mode": "Disable"}, None), (ON | {"Mode": "Disable"}, None)],
)
def test_the_share_of_memory_is_the_clusters_and_a_fifth_where_it_is_left_out(
    session: Session, config: dict[str, Any], percent: int | None
):
    told = plan(session, rows.node(session, with_tier(session, config)))
    assert told.allocation_percent == percent


def test_peers_are_the_other_nodes_that_can_be_read_from(session: Session):
    cluster = with_tier(session)
    one, other, draining, gone = rows.nodes(session, cluster, 4)
    rows.node(session, cluster, number=5, state=NodeState.BOOTING)
    settle_node(session, draining, NodeState.DRAINING, why="test", now=NOW)
    settle_node(session, gone, NodeState.SUSPECT, why="test", now=NOW)
    settle_lost(session, gone, witnesses="the test", now=NOW)
    rows.node(session, rows.cluster(session, "c2"), number=9)
    told = plan(session, one)
    assert {(peer.node, peer.address) for peer in told.peers} == {
        (other.instance_id, other.address),
        (draining.instance_id, draining.address),
    }
    assert {peer.zone for peer in told.peers} == {told.zone} == {"us-east-1a"}


def test_nodes_of_one_cluster_share_a_secret_that_no_table_holds(session: Session):
    one, other = rows.nodes(session, with_tier(session), 2)
    job = running(session, one)
    secrets = {plan(session, node).secret for node in (one, other)}
    [namespace] = plan(session, one).namespaces
    assert secrets == {tier_secret(rows.MASTER_KEY, one.cluster_id)}
    assert namespace.token == namespace_token(rows.MASTER_KEY, job.id, job.id)
    kept = "".join(str(session.execute(text(f'SELECT * FROM "{table.name}"')).all()) for table in metadata.sorted_tables)
    assert not any(secret in kept for secret in (*secrets, namespace.token))
    assert plan(session, rows.node(session, with_tier(session, name="c2"), number=9)).secret not in secrets


def test_a_jobs_policy_reaches_the_nodes_that_run_it_or_hold_its_shards(session: Session):
    one, holder, stranger = rows.nodes(session, with_tier(session), 3)
    keep = {"memory": 4, "last": 5, "every": None, "max_age": 60.0, "max_bytes": None}
    block = {"memory_every": 10, "durable_every": 50, "replicas": 3, "keep": keep, "namespace": "llama"}
    job = running(session, one, {"checkpoint": block})
    rows.held(session, holder, "llama", 10, [0])
    checkpoints.settle_fault_rate(session, "llama", 3600.0, now=NOW)
    [told] = plan(session, one).namespaces
    assert (told.name, told.job, told.memory_every, told.durable_every, told.replicas) == ("llama", job.id, 10, 50, 3)
    assert (told.keep_in_memory, told.retention, told.mtbf_s) == (4, Retention(last=5, max_age_s=60.0), 3600.0)
    assert plan(session, holder).namespaces == (told,)
    assert plan(session, stranger).namespaces == ()


def test_a_job_without_a_tier_still_has_its_policy_told_to_its_nodes(session: Session):
    node = rows.node(session, rows.cluster(session))
    running(session, node)
    told = plan(session, node)
    assert (told.allocation_percent, told.peers, len(told.namespaces)) == (None, (), 1)


def test_steps_that_are_pinned_to_be_drained_or_dropped_are_named(session: Session):
    node = rows.node(session, with_tier(session))
    job = running(session, node)
    for step in (10, 20, 30, 40, 50):
        rows.held(session, node, job.id, step, [0, 1])
    rows.durable(session, session.get_one(Cluster, job.cluster_id), job.id, 10)
    of = {step: queries.get(session, job.id, step, lock=True) for step in (10, 20, 30, 40)}
    for step in (10, 20):
        checkpoints.request_pinned(session, job, of[step], is_pinned=True, now=NOW)
    checkpoints.request_export(session, job, of[30], ExportFormat.DCP, target=None, by="ann", now=NOW)
    checkpoints.request_dropped(session, job, of[40], by="ann", now=NOW)
    [told] = plan(session, node).namespaces
    assert (told.pinned, told.drain, told.dropped) == ((10, 20), (20, 30), (40,))


def test_the_namespace_of_an_ended_job_ends_once_nothing_of_it_is_to_be_drained(session: Session):
    node = rows.node(session, with_tier(session))
    job = running(session, node)
    rows.held(session, node, job.id, 10, [0, 1])
    checkpoints.request_pinned(session, job, queries.get(session, job.id, 10, lock=True), is_pinned=True, now=NOW)
    rows.settle_job(session, job, JobState.STOPPED)
    told = plan(session, node)
    assert ([one.name for one in told.namespaces], told.ended) == ([job.id], ())
    rows.durable(session, session.get_one(Cluster, job.cluster_id), job.id, 10)
    told = plan(session, node)
    assert (told.namespaces, told.ended) == ((), (job.id,))


def test_a_namespace_that_a_job_of_another_cluster_has_taken_over_ends_on_the_nodes_before(session: Session):
    node = rows.node(session, with_tier(session))
    job = running(session, node, {"checkpoint": {"namespace": "llama"}})
    rows.held(session, node, "llama", 10, [0, 1])
    rows.settle_job(session, job, JobState.STOPPED)
    elsewhere = with_tier(session, name="c2")
    rows.namespace(session, rows.job(session, elsewhere, "later"), "llama")
    told = plan(session, node)
    assert (told.namespaces, told.ended) == ((), ("llama",)), "else its memory would be kept for somebody who cannot reach it"
    of_same = rows.job(session, session.get_one(Cluster, job.cluster_id), "last")
    rows.settle_job(session, session.query(Job).filter_by(name="later").one(), JobState.STOPPED)
    rows.namespace(session, of_same, "llama")
    [kept] = plan(session, node).namespaces
    assert (kept.name, kept.job) == ("llama", of_same.id)


def test_the_same_plan_has_the_same_number_and_any_other_another_one(session: Session):
    cluster = with_tier(session)
    one, _ = rows.nodes(session, cluster, 2)
    first = plan(session, one)
    assert plan(session, one) == first
    running(session, one)
    second = plan(session, one)
    switched(session, cluster, ON | {"InstanceMemoryAllocationPercentage": 40})
    numbers = [first.number, second.number, plan(session, one).number]
    assert len(set(numbers)) == 3
    assert all(0 < number < 2**63 for number in numbers)
    assert TierPlan.from_wire(json.loads(json.dumps(second.to_wire()))) == second


def test_an_outage_of_the_store_is_everybodys(session: Session):
    node = rows.node(session, with_tier(session))
    assert plan(session, node).is_store_out is False
    request_outage(session, target="object-store", seconds=60, by="ann", now=NOW)
    assert plan(session, node).is_store_out is True


def test_what_nodes_have_in_common_is_read_once_for_all_of_them(session: Session):
    """A plan then costs its node three queries, or four with a namespace, whatever the number of its peers."""
    cluster = with_tier(session)
    nodes = rows.nodes(session, cluster, 6)
    running(session, nodes[0])
    commons, asked = Commons(rows.MASTER_KEY), []
    plan(session, nodes[0], commons)
    connection = session.connection()
    event.listen(connection, "before_cursor_execute", lambda *told: asked.append(told[2]))
    for node in nodes:
        tiers.line(session, node.id, commons, now=NOW)
    assert len(asked) <= 2 * len(nodes) + 1


# ----------------------------------------------------------------------------------------------------------- who is woken


def news(session: Session, commons: Commons, nodes: list[Node], seconds: float) -> set[str]:
    session.flush()
    return set(commons.news(session, [node.id for node in nodes], now=at(seconds)))


def test_nothing_new_wakes_nobody(session: Session):
    nodes = rows.nodes(session, with_tier(session), 2)
    commons = Commons(rows.MASTER_KEY)
    assert [news(session, commons, nodes, seconds) for seconds in (0, 3, 6)] == [set(), set(), set()]


def test_a_new_peer_and_a_switch_wake_the_nodes_of_that_cluster(session: Session):
    cluster = with_tier(session)
    nodes = rows.nodes(session, cluster, 2)
    other = rows.node(session, with_tier(session, name="c2"), number=9)
    commons = Commons(rows.MASTER_KEY)
    news(session, commons, [*nodes, other], 0)
    nodes.append(rows.node(session, cluster, number=3))
    everybody = {node.id for node in nodes}
    assert news(session, commons, [*nodes, other], 3) == everybody
    switched(session, cluster, {"Mode": "Disable"})
    assert news(session, commons, [*nodes, other], 6) == everybody
    assert news(session, commons, [*nodes, other], 9) == set()


def test_what_some_nodes_were_told_between_two_looks_is_told_right_to_all(session: Session):
    """The setting goes there and back between two looks: those who were told of the middle must hear of the end."""
    cluster = with_tier(session)
    nodes = rows.nodes(session, cluster, 2)
    commons = Commons(rows.MASTER_KEY)
    news(session, commons, nodes, 0)
    switched(session, cluster, {"Mode": "Disable"})
    assert plan(session, nodes[0], commons, seconds=1.5).allocation_percent is None
    switched(session, cluster, ON)
    assert news(session, commons, nodes, 3) == {node.id for node in nodes}


def test_the_end_of_a_job_wakes_who_holds_its_shards(session: Session):
    running_there, holder, stranger = rows.nodes(session, with_tier(session), 3)
    job = running(session, running_there)
    rows.held(session, holder, job.id, 10, [0])
    commons = Commons(rows.MASTER_KEY)
    nodes = [running_there, holder, stranger]
    news(session, commons, nodes, -3)
    rows.settle_job(session, job, JobState.STOPPED)
    assert news(session, commons, nodes, 0) == {holder.id}


def test_a_switch_is_told_in_an_event_and_to_every_node(sessions: Sessions, listen):
    with unit_of_work(sessions) as session:
        cluster = with_tier(session)
        ids = {node.id for node in rows.nodes(session, cluster, 2)}
    ear = listen("everstep_directive")
    with unit_of_work(sessions) as session:
        tiers.switch(session, session.get_one(Cluster, cluster.id), now=NOW)
    assert set(ear.heard(at_least=2)) == ids
