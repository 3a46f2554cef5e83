"""Spare pools of groups, on real rows: what is kept free, who may use it, and pools that are left to the planner."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select, update

from models.cluster import queries as clusters
from models.cluster.changes import request_spare_pool
from models.events import Event
from models.job.states import ALIVE, JobState
from models.node.table import Node
from models.session import unit_of_work
from workers import tending
from workers.plane import Plane


def keep(plane, cluster_id: str, nodes: int | None) -> None:
    with unit_of_work(plane.sessions) as session:
        cluster = clusters.get(session, cluster_id, lock=True)
        [group] = clusters.groups(session, cluster_id)
        request_spare_pool(session, cluster, group, nodes, now=plane.clock.at)


def homes(plane, job_id: str) -> set[str]:
    return {process.node_id for process in plane.processes(job_id) if process.state in ALIVE}


def whole(plane) -> Plane:
    return Plane(plane.sessions, plane.clock, plane.driver, plane.provider)


def sized(plane, cluster_id: str) -> list[str]:
    with unit_of_work(plane.sessions) as session:
        wanted = select(Event).where(Event.cluster_id == cluster_id, Event.name == "spare pool sized").order_by(Event.sequence)
        return [event.description for event in session.scalars(wanted)]


def test_new_jobs_leave_the_pool_free_and_a_lost_node_is_made_up_for_from_it(plane):
    cluster_id = plane.serving(4)
    keep(plane, cluster_id, 1)
    first = plane.training(cluster_id, replicas=2, spares=1)
    assert len(homes(plane, first)) == 3
    waits = plane.job(cluster_id, "j2", replicas=1, spares=0)
    plane.run(10)
    assert plane.job_state(waits) is JobState.QUEUED
    assert "1 more are kept as spares" in plane.job_row(waits).why
    struck = homes(plane, first)
    plane.die(plane.node(plane.members(first)[0].node_id).instance_id)
    plane.run_until(lambda: plane.job_state(first) is JobState.TRAINING and len(homes(plane, first) - struck) == 1)


def test_a_job_without_spares_of_its_own_finds_the_pools_node_and_the_pool_is_filled_again(plane):
    cluster_id = plane.serving(3)
    keep(plane, cluster_id, 1)
    job_id = plane.training(cluster_id, replicas=2, spares=0)
    before = homes(plane, job_id)
    kept = {node.id for node in plane.nodes(cluster_id)} - before
    victim = sorted(before)[1]
    plane.die(plane.node(victim).instance_id)
    plane.run_until(lambda: kept <= homes(plane, job_id) and plane.job_state(job_id) is JobState.TRAINING)
    late = plane.job(cluster_id, "j2", replicas=1, spares=0)
    plane.run_until(lambda: len([state for state in plane.states()["node"] if state == "ready"]) == 3)
    plane.run(10)
    assert plane.job_state(late) is JobState.QUEUED, "the new host is the pool's"
    keep(plane, cluster_id, 0)
    plane.run_until(lambda: plane.job_state(late) is JobState.TRAINING)


def test_a_pool_that_is_left_to_the_planner_is_sized_by_what_faults_are_to_be_expected(plane):
    cluster_id = plane.serving(4)
    keep(plane, cluster_id, None)
    assert tending.size_spare_pools(whole(plane)) == 1
    assert tending.size_spare_pools(whole(plane)) == 0, "nothing has changed"
    assert sized(plane, cluster_id)[0].startswith("1 spare: one fault in ")
    job_id = plane.training(cluster_id, replicas=3, spares=0, max_restarts=1000)
    for generation in range(2, 9):
        plane.exit(plane.members(job_id)[0].id, signal=9)
        plane.run_until(lambda generation=generation: len(plane.generations(job_id)) >= generation)
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(created_at=Node.created_at - timedelta(minutes=10)))
    plane.clock.at += timedelta(hours=2)
    assert tending.size_spare_pools(whole(plane)) == 1
    assert len(sized(plane, cluster_id)) == 2


def test_a_pool_of_a_fixed_size_is_left_as_it_is(plane):
    cluster_id = plane.serving(4)
    keep(plane, cluster_id, 2)
    assert tending.size_spare_pools(whole(plane)) == 0
    assert sized(plane, cluster_id) == []
