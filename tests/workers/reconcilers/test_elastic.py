"""Elastic jobs on real rows: growth, shrinking, commands, what others need, and whose a free node is."""

from __future__ import annotations

from sqlalchemy import select

from models.events import Event
from models.job.changes import request_lift, request_resize, request_stop, request_surrender
from models.job.queries import get
from models.job.states import ALIVE, JobState
from models.session import unit_of_work

SPEC = {"command": ["python", "train.py"]}


def elastic(least: int = 1, most: int = 4, **times) -> dict:
    block = {"min": least, "max": most, "scaling_timeout": 60.0, "faulty_scale_down_timeout": 30.0}
    return {"replicas": most, "spares": 0, "spec": SPEC | {"elastic": block | times}}


def size(plane, job_id: str) -> int:
    return len(plane.generations(job_id)[-1].members)


def held(plane, job_id: str) -> int:
    return sum(process.state in ALIVE for process in plane.processes(job_id))


def ask(plane, job_id: str, how, *words, **more) -> int | None:
    with unit_of_work(plane.sessions) as session:
        return how(session, get(session, job_id, lock=True), *words, **more, now=plane.clock.at)


def lose(plane, job_id: str, rank: int) -> None:
    victim = plane.members(job_id)[rank]
    plane.die(plane.node(victim.node_id).instance_id)
    plane.complain(plane.members(job_id)[rank - 1].id)


def scarce(plane, hosts: int) -> None:
    """So many hosts there are, and no more."""
    plane.provider.scarce = {"ml.c5.xlarge": hosts}


def test_a_job_starts_on_the_free_nodes_and_grows_when_others_have_been_free_for_the_settle_time(plane):
    cluster_id = plane.serving(4)
    other = plane.training(cluster_id, "other", replicas=2, spares=0)
    job_id = plane.training(cluster_id, **elastic())
    assert size(plane, job_id) == 2
    plane.run(20)
    ask(plane, other, request_stop)
    plane.run_until(lambda: plane.job_state(other) is JobState.STOPPED)
    plane.run(57)
    assert (size(plane, job_id), held(plane, job_id)) == (2, 2)
    plane.run_until(lambda: size(plane, job_id) == 4, 20)
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    row = plane.job_row(job_id)
    assert (row.replicas, row.resizes, row.recoveries, row.restarts) == (4, 1, 0, 0)


def test_a_job_shrinks_and_grows_on_command_and_gives_its_nodes_back(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, **elastic(scaling_timeout=600.0))
    survivors = [process.id for process in plane.members(job_id)][:2]
    ask(plane, job_id, request_resize, 2)
    plane.run(10)
    assert [process.id for process in plane.members(job_id)] == survivors
    assert held(plane, job_id) == 2
    other = plane.training(cluster_id, "other", replicas=2, spares=0)
    ask(plane, job_id, request_resize, 3)
    plane.run(10)
    assert size(plane, job_id) == 2, "growth takes no node that another job holds"
    ask(plane, other, request_stop)
    plane.run_until(lambda: size(plane, job_id) == 3)
    assert [process.id for process in plane.members(job_id)][:2] == survivors
    assert plane.job_row(job_id).resizes == 2


def test_a_job_of_higher_need_gets_as_many_nodes_as_it_needs_and_the_elastic_one_trains_on(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, **elastic(least=2, scaling_timeout=5.0))
    big = plane.job(cluster_id, "big", replicas=1, spares=0)
    assert ask(plane, job_id, request_surrender, 1, why="job big needs a node") == 1
    plane.run_until(lambda: plane.job_state(big) is JobState.TRAINING)
    assert (plane.job_state(job_id), size(plane, job_id)) == (JobState.TRAINING, 3)
    assert ask(plane, job_id, request_surrender, 5, why="job big needs more") == 1, "never below its least size"
    assert ask(plane, big, request_surrender, 1, why="a job of one size gives nothing") == 0
    plane.run(10)
    assert size(plane, job_id) == 2
    ask(plane, job_id, request_lift)
    ask(plane, big, request_stop)
    plane.run_until(lambda: size(plane, job_id) == 4)


def test_a_lost_node_without_a_replacement_is_done_without_and_its_successor_grown_onto(plane):
    cluster_id = plane.serving(3)
    job_id = plane.training(cluster_id, **elastic(most=3, scaling_timeout=10.0))
    scarce(plane, 2)
    lose(plane, job_id, 1)
    plane.run(25)
    assert (plane.job_state(job_id), size(plane, job_id)) == (JobState.RECOVERING, 3)
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING, 20)
    assert size(plane, job_id) == 2
    row = plane.job_row(job_id)
    assert (row.resizes, row.recoveries, row.restarts, row.awaits) == (1, 0, 0, 0)
    plane.provider.scarce = {}
    plane.run_until(lambda: size(plane, job_id) == 3, 600)


def test_a_lost_nodes_successor_belongs_to_its_gang_and_not_to_the_queue(plane):
    cluster_id = plane.serving(4)
    job_id = plane.training(cluster_id, replicas=4, spares=0)
    waiting = plane.job(cluster_id, "waiting", replicas=1, spares=0)
    plane.run(2)
    lose(plane, job_id, 1)
    plane.run_until(lambda: plane.job_state(job_id) is JobState.RECOVERING)
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    assert (size(plane, job_id), plane.job_state(waiting)) == (4, JobState.QUEUED)
    assert plane.job_row(job_id).recoveries == 1


def test_below_its_least_size_a_job_is_admitted_whole_or_not_at_all(plane):
    cluster_id = plane.serving(3)
    other = plane.training(cluster_id, "other", replicas=2, spares=0)
    job_id = plane.job(cluster_id, **elastic(least=2))
    plane.run(100)
    assert (plane.job_state(job_id), plane.processes(job_id)) == (JobState.QUEUED, [])
    assert "2 free nodes" in plane.job_row(job_id).why
    ask(plane, other, request_stop)
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    assert size(plane, job_id) == 3


def test_every_change_of_size_is_told_with_its_why(plane):
    cluster_id = plane.serving(3)
    job_id = plane.training(cluster_id, **elastic(most=3))
    ask(plane, job_id, request_resize, 1)
    plane.run(5)
    with unit_of_work(plane.sessions) as session:
        told = [
            event.description for event in session.scalars(select(Event).where(Event.job_id == job_id).order_by(Event.sequence))
        ]
    assert "Size 1 is asked for, instead of 3." in told
    assert any("Shrinks from 3 to 1 node: size 1 is asked for." in text for text in told)
