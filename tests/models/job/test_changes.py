from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from models.errors import AlreadyExists, IllegalMove
from models.events import Event
from models.job import changes, queries
from models.job.changes import JobSpec
from models.job.states import ENDED, ON_PEERS_WORD, JobState, ProcessState
from models.job.table import Job, JobProcess
from models.session import Sessions, unit_of_work
from tests import rows

NOW = rows.NOW
SECOND = timedelta(seconds=1)


def publish(session: Session, job: Job, members: list[JobProcess]) -> None:
    changes.settle_generation(session, job, members, cause="test", evidence_at=None, now=NOW)


def test_a_job_starts_in_the_queue_and_asks_to_be_looked_at(session: Session) -> None:
    job = rows.job(session, rows.cluster(session), replicas=4, processes_per_node=2)
    assert (job.state, job.reconcile_at, job.step, job.generation) == (JobState.QUEUED, NOW, 0, 0)
    assert JobSpec("n", job.cluster_id, 4, 2, 0, 0, {}).world_size == 8


def test_a_name_is_taken_until_its_job_has_ended(session: Session) -> None:
    cluster = rows.cluster(session)
    job = rows.job(session, cluster, "train")
    with pytest.raises(AlreadyExists, match="Job with name train"):
        rows.job(session, cluster, "train")
    rows.settle_job(session, job, JobState.STOPPED)
    assert rows.job(session, cluster, "train").id != job.id


def test_two_clusters_may_use_one_name_for_their_jobs(session: Session) -> None:
    assert rows.job(session, rows.cluster(session, "c1")).id != rows.job(session, rows.cluster(session, "c2")).id


def test_the_session_goes_on_after_a_name_was_refused(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
        rows.job(session, cluster)
        with pytest.raises(AlreadyExists):
            rows.job(session, cluster)
        rows.job(session, cluster, "other")
    with sessions() as session:
        assert {job.name for job in queries.of_cluster(session, cluster.id)} == {"j1", "other"}


def test_a_stop_is_asked_for_once(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    changes.request_stop(session, job, now=NOW + SECOND)
    changes.request_stop(session, job, now=NOW + 2 * SECOND)
    session.flush()
    assert (job.stop_requested, job.reconcile_at) == (True, NOW + SECOND)
    assert [event for event in names(session, job) if event == "stop requested"] == ["stop requested"]


def test_a_job_that_has_ended_cannot_be_stopped(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    rows.settle_job(session, job, JobState.STOPPED)
    changes.request_stop(session, job, now=NOW)
    assert (job.stop_requested, job.reconcile_at) == (False, None)


def test_a_job_remembers_when_it_first_started_and_when_it_ended(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    changes.settle_job(session, job, JobState.FORMING, why="Nodes found.", now=NOW + SECOND)
    changes.settle_job(session, job, JobState.QUEUED, why="Nodes lost.", now=NOW + 2 * SECOND)
    changes.settle_job(session, job, JobState.FORMING, why="Nodes found.", now=NOW + 3 * SECOND)
    changes.settle_job(session, job, JobState.FAILED, why="It broke.", now=NOW + 4 * SECOND)
    assert (job.started_at, job.ended_at) == (NOW + SECOND, NOW + 4 * SECOND)
    assert (job.failure, job.why) == ("It broke.", "It broke.")
    assert job.state in ENDED


def test_an_illegal_conclusion_is_refused(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    with pytest.raises(IllegalMove):
        changes.settle_job(session, job, JobState.TRAINING, why="", now=NOW)


def test_members_are_ranked_in_their_order_and_the_rest_are_spares(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first, second, third = rows.processes(session, job, 3)
    publish(session, job, [third, first])
    assert [process.rank for process in (first, second, third)] == [1, None, 0]
    assert queries.generations(session, job.id)[0].members == [third.id, first.id]
    assert (job.generation, job.recoveries) == (1, 0)


def test_a_newer_generation_ranks_anew_and_counts_as_a_recovery(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first, second, third = rows.processes(session, job, 3)
    publish(session, job, [first, second])
    changes.settle_given_up(session, job, first, why="node lost", now=NOW)
    publish(session, job, [third, second])
    assert (first.rank, second.rank, third.rank) == (0, 1, 0)
    assert (job.generation, job.recoveries) == (2, 1)


def test_a_finished_member_is_called_back_and_a_finished_outsider_is_not(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first, second, third = rows.processes(session, job, 3)
    publish(session, job, [first, second, third])
    for process in (first, second):
        rows.reach(session, process, ProcessState.FINISHED)
    publish(session, job, [first, third])
    assert (first.state, second.state) == (ProcessState.READY, ProcessState.FINISHED)


def test_a_member_that_died_a_moment_ago_keeps_its_rank_for_the_plan_to_see(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first, second, _ = rows.processes(session, job, 3)
    rows.reach(session, second, ProcessState.EXITED)
    publish(session, job, [first, second])
    assert (second.rank, second.state) == (1, ProcessState.EXITED)


def test_the_ranks_are_those_of_the_database_not_of_a_session_that_read_long_ago(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        job = rows.job(session, rows.cluster(session))
        first, second, _ = rows.processes(session, job, 3)
    with unit_of_work(sessions) as late:
        known = queries.processes(late, job.id)
        with unit_of_work(sessions) as other:
            rows.reach(other, other.get_one(JobProcess, second.id), ProcessState.FINISHED)
        mine = queries.get(late, job.id, lock=True)
        publish(late, mine, [process for process in known if process.id in {first.id, second.id}])
    with sessions() as session:
        assert session.get_one(JobProcess, second.id).state is ProcessState.READY


def test_giving_up_a_process_that_is_gone_changes_nothing(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first = rows.processes(session, job, 1)[0]
    rows.reach(session, first, ProcessState.EXITED)
    changes.settle_given_up(session, job, first, why="node lost", now=NOW)
    assert (first.state, first.failure) == (ProcessState.EXITED, None)


def test_processes_hold_their_nodes_until_they_are_gone(session: Session) -> None:
    cluster = rows.cluster(session)
    job = rows.job(session, cluster)
    first, second, third = rows.processes(session, job, 3)
    changes.settle_given_up(session, job, first, why="node lost", now=NOW)
    session.flush()
    assert queries.busy_nodes(session, cluster.id) == {second.node_id: job.id, third.node_id: job.id}
    assert queries.on_node(session, first.node_id) == []


def test_a_process_that_is_to_start_anew_no_longer_counts_and_its_job_looks_at_once(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first, _ = rows.processes(session, job, 2)
    publish(session, job, [first])
    job.reconcile_at = None
    for _ in range(2):
        changes.request_restart_of(session, first, why="a contained memory error struck it", now=NOW + SECOND)
    assert (first.state, first.failure) == (ProcessState.LOST, "a contained memory error struck it")
    assert job.reconcile_at == NOW + SECOND
    assert (job.restarts, names(session, job).count("process lost")) == (0, 1)


def test_no_process_of_an_ended_job_is_started_anew(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first = rows.processes(session, job, 1)[0]
    rows.settle_job(session, job, JobState.STOPPED)
    changes.request_restart_of(session, first, why="a contained memory error struck it", now=NOW)
    assert first.state is not ProcessState.LOST


def test_a_process_that_is_released_as_planned_is_no_loss(session: Session) -> None:
    job = rows.job(session, rows.cluster(session))
    first = rows.processes(session, job, 1)[0]
    changes.settle_given_up(session, job, first, why="its node is to be left", is_planned=True, now=NOW)
    assert first.state is ProcessState.LOST
    assert names(session, job)[-1] == "process released"


def names(session: Session, job: Job) -> list[str]:
    return list(session.scalars(select(Event.name).where(Event.job_id == job.id).order_by(Event.sequence)))


def test_only_what_peers_said_of_a_process_counts_against_its_node(session: Session) -> None:
    cluster = rows.cluster(session)
    job = rows.job(session, cluster)
    crew = rows.processes(session, job, 4)
    for process, why in zip(crew, (ON_PEERS_WORD, "the job has ended", "its node is to be left: taken back"), strict=False):
        changes.settle_given_up(session, job, process, why=why, now=NOW)
    session.flush()
    assert [queries.given_up_on(session, process.node_id, since=NOW) for process in crew] == [1, 0, 0, 0]
    assert queries.given_up_on(session, crew[0].node_id, since=NOW + SECOND) == 0
