"""What a lock promises: the row as it is now, one order everywhere, and no waiting for those who merely refer to it."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy.exc import IntegrityError

from models.cluster import queries as clusters
from models.cluster.changes import request_deletion
from models.cluster.states import ClusterState
from models.directive import queries as directives
from models.directive.changes import settle_assignment
from models.errors import NotFound
from models.job import queries as jobs
from models.node import queries as nodes
from models.session import Sessions, unit_of_work
from tests import rows


def test_a_locked_row_is_read_as_it_is_now_even_if_the_session_knew_it_before(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        rows.cluster(session)
    with unit_of_work(sessions) as late:
        before = clusters.find(late, "c1")
        assert before.state is ClusterState.CREATING
        with unit_of_work(sessions) as other:
            request_deletion(other, clusters.find(other, "c1", lock=True), now=rows.NOW)
        assert clusters.find(late, "c1", lock=True).state is ClusterState.DELETING


def test_a_lock_does_not_forget_what_the_session_has_changed_itself(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
        cluster.failure_message = "not flushed yet"
        assert clusters.find(session, "c1", lock=True).failure_message == "not flushed yet"


def test_a_lock_on_a_row_that_was_deleted_meanwhile_finds_nothing(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        rows.cluster(session)
    waiting = threading.Event()
    found: list[object] = []

    def look() -> None:
        with unit_of_work(sessions) as session:
            waiting.set()
            try:
                found.append(clusters.find(session, "c1", lock=True))
            except NotFound as error:
                found.append(error)

    with unit_of_work(sessions) as session:
        cluster = clusters.find(session, "c1", lock=True)
        request_deletion(session, cluster, now=rows.NOW)
        rows.settle_cluster(session, cluster, ClusterState.DELETED)
        late = threading.Thread(target=look)
        late.start()
        assert waiting.wait(timeout=10)
    late.join(timeout=20)
    assert isinstance(found[0], NotFound)


def test_a_reconciler_and_an_agents_reports_do_not_wait_for_each_other(sessions: Sessions) -> None:
    """The agents' door locks node, then job; a job's reconciler locks the job and inserts rows that refer to the node."""
    with unit_of_work(sessions) as session:
        cluster = rows.cluster(session)
        node = rows.node(session, cluster)
        job = rows.job(session, cluster)
    both_hold_one = threading.Barrier(2)
    errors: list[BaseException] = []

    def agent() -> None:
        with unit_of_work(sessions) as session:
            nodes.get(session, node.id, lock=True)
            both_hold_one.wait(timeout=10)
            jobs.get(session, job.id, lock=True)

    def reconciler() -> None:
        with unit_of_work(sessions) as session:
            jobs.get(session, job.id, lock=True)
            both_hold_one.wait(timeout=10)
            settle_assignment(session, node.id, job.id, {"job": job.id}, now=rows.NOW)

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (agent, reconciler)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not errors
    with sessions() as session:
        assert len(directives.current(session, node.id)) == 1


def test_a_locked_row_can_be_read_by_others(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        rows.cluster(session)
    with unit_of_work(sessions) as session, unit_of_work(sessions) as other:
        clusters.find(session, "c1", lock=True)
        assert clusters.find(other, "c1").name == "c1"


def test_a_job_of_an_unknown_cluster_is_no_matter_of_names(sessions: Sessions) -> None:
    with sessions() as session:
        cluster = rows.cluster(session)
        session.rollback()
        with pytest.raises(IntegrityError, match="fk_job_cluster_id"):
            rows.job(session, cluster)
