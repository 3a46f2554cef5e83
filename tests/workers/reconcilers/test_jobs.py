from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from models.cluster.states import ClusterState
from models.directive.states import DirectiveState
from models.directive.table import Directive
from models.job.changes import request_stop
from models.job.queries import get
from models.job.states import JobState, ProcessState
from models.session import unit_of_work


def test_a_job_is_placed_formed_and_trains(plane):
    cluster_id = plane.serving(5)
    job_id = plane.training(cluster_id)
    told = plane.told(job_id)
    assert len(told) == 4
    generation = next(iter(told.values())).generation
    assert [member.rank for member in generation.members] == [0, 1, 2]
    assert generation.number == 1
    first = plane.node(generation.members[0].node)
    assert generation.rendezvous == f"{first.address}:{first.rendezvous_port}"
    assert sorted((process.rank is None) for one in told.values() for process in one.processes) == [False, False, False, True]


def test_a_dead_rank_is_replaced_by_the_spare_in_one_step(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id)
    victim = plane.members(job_id)[1]
    plane.exit(victim.id, signal=9)
    plane.driver.reconcile("job", job_id)
    assert plane.job_state(job_id) is JobState.RECOVERING
    generation = plane.generations(job_id)[-1]
    assert generation.number == 2
    assert generation.members[1] != victim.id
    told = plane.told(job_id)
    assert all(one.generation.number == 2 for one in told.values() if one.processes)
    assert victim.id not in {process.id for one in told.values() for process in one.processes}
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)


def test_a_lost_node_is_decided_on_before_its_provider_is_asked(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id)
    members = plane.members(job_id)
    plane.die(plane.node(members[0].node_id).instance_id)
    plane.clock.at += timedelta(milliseconds=20)
    plane.complain(members[2].id)
    plane.driver.reconcile("job", job_id)
    generation = plane.generations(job_id)[-1]
    assert generation.number == 2
    assert generation.evidence_at == plane.clock.at - timedelta(milliseconds=20)
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * 4)
    plane.run(8)
    spares = [process for process in plane.processes(job_id) if process.state is ProcessState.READY and process.rank is None]
    assert len(spares) == 1
    assert not list(plane.generations(job_id)[2:])


def test_the_jobs_conclusion_confirms_the_nodes_loss(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id)
    members = plane.members(job_id)
    victim = plane.node(members[0].node_id)
    plane.silence(victim.instance_id)  # its provider goes on saying that it is alive
    plane.complain(members[1].id)
    plane.work()
    plane.run(1)
    assert plane.node(victim.id).lost_because is not None
    assert "peers" in plane.node(victim.id).lost_because


def test_an_agent_that_restarts_does_not_disturb_its_job(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id)
    victim = plane.node(plane.members(job_id)[0].node_id)
    plane.silence(victim.instance_id)
    plane.run(5)
    plane.speak_again(victim.instance_id)
    plane.run(5)
    assert plane.job_state(job_id) is JobState.TRAINING
    assert len(plane.generations(job_id)) == 1


def test_two_jobs_never_share_a_node(plane):
    cluster_id = plane.serving(4)
    first = plane.training(cluster_id, "a", replicas=2, spares=0)
    second = plane.training(cluster_id, "b", replicas=2, spares=0)
    nodes = [process.node_id for job_id in (first, second) for process in plane.members(job_id)]
    assert len(set(nodes)) == 4


def test_a_queued_job_starts_when_another_one_ends(plane):
    cluster_id = plane.serving(3)
    first = plane.training(cluster_id, "a", spares=0)
    second = plane.job(cluster_id, "b", spares=0)
    plane.run(12)
    assert plane.job_state(second) is JobState.QUEUED
    assert "3 free nodes" in plane.job_row(second).why
    plane.finish(first)
    plane.run(2)
    assert plane.job_state(first) is JobState.SUCCEEDED
    plane.run_until(lambda: plane.job_state(second) is JobState.TRAINING)


def test_a_finished_job_leaves_no_process_and_no_directive(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id)
    plane.finish(job_id)
    plane.run(20)
    assert plane.job_state(job_id) is JobState.SUCCEEDED
    assert {process.state for process in plane.processes(job_id)} == {ProcessState.EXITED}
    assert plane.told(job_id) == {}
    with unit_of_work(plane.sessions) as session:
        ends = set(session.scalars(select(Directive.state).where(Directive.job_id == job_id)))
    assert ends == {DirectiveState.DONE, DirectiveState.SUPERSEDED}
    assert plane.job_row(job_id).reconcile_at is None


def test_a_stopped_job_ends_its_processes_first(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id)
    with unit_of_work(plane.sessions) as session:
        request_stop(session, get(session, job_id, lock=True), now=plane.clock.at)
    plane.work()
    assert plane.job_state(job_id) is JobState.TRAINING
    assert all(not one.processes for one in plane.told(job_id).values())
    plane.run(5)
    assert plane.job_state(job_id) is JobState.STOPPED
    assert plane.told(job_id) == {}


def test_user_code_that_fails_everywhere_fails_the_job_with_its_traceback(plane):
    cluster_id = plane.serving(3)
    job_id = plane.job(cluster_id, spares=0)
    plane.work()
    for process in plane.processes(job_id):
        plane.exit(process.id, exit_code=1, failure="Traceback\nNameError: modle")
    plane.work()
    assert plane.job_state(job_id) is JobState.FAILED
    assert plane.job_row(job_id).failure.endswith("NameError: modle")


def test_deleting_a_cluster_stops_its_jobs(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id)
    queued = plane.job(cluster_id, "waits")
    plane.delete_cluster(cluster_id)
    plane.run_until(lambda: plane.cluster_state(cluster_id) is ClusterState.DELETED)
    assert plane.job_state(job_id) is JobState.STOPPED
    assert plane.job_state(queued) is JobState.STOPPED
    plane.run(30)
    assert not [process for process in plane.processes(job_id) if process.state not in (ProcessState.LOST, ProcessState.EXITED)]
    assert plane.told(job_id) == {}


def test_a_job_survives_the_loss_of_every_node_but_one_when_time_allows(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, replicas=2, spares=1)
    for _ in range(3):
        victim = plane.members(job_id)[0]
        plane.die(plane.node(victim.node_id).instance_id)
        plane.complain(plane.members(job_id)[1].id)
        plane.work()
        plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
        plane.run(10)
    assert len(plane.generations(job_id)) == 4
    assert plane.states()["node"] == ["ready"] * 4
