from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.directive import changes, queries
from models.directive.states import DirectiveState
from models.directive.table import Directive
from models.ids import JobId, NodeId
from models.notify import DIRECTIVE
from models.session import Sessions, unit_of_work
from tests import rows
from tests.postgres import Ear

NOW = rows.NOW


def place(session: Session) -> tuple[NodeId, JobId]:
    cluster = rows.cluster(session)
    return rows.node(session, cluster).id, rows.job(session, cluster).id


def assign(session: Session, node: NodeId, job: JobId, *processes: str, **more: Any) -> None:
    assignment = {"job": job, "processes": [{"id": process} for process in processes]} | more
    changes.settle_assignment(session, node, job, assignment, now=NOW)


def all_states(session: Session) -> list[DirectiveState]:
    return list(session.scalars(select(Directive.state).order_by(Directive.id)))


def test_a_newer_assignment_supersedes_the_one_before(session: Session) -> None:
    node, job = place(session)
    assign(session, node, job, "p-1")
    assign(session, node, job, "p-2")
    (current,) = queries.current(session, node)
    assert current.assignment["processes"] == [{"id": "p-2"}]
    assert all_states(session) == [DirectiveState.SUPERSEDED, DirectiveState.ISSUED]


def test_the_same_assignment_again_changes_nothing(session: Session) -> None:
    node, job = place(session)
    assign(session, node, job, "p-1", grace_s=2.5)
    session.expire_all()
    assign(session, node, job, "p-1", grace_s=2.5)
    assert all_states(session) == [DirectiveState.ISSUED]


def test_a_node_has_one_directive_for_each_of_its_jobs(session: Session) -> None:
    node, job = place(session)
    other = rows.job(session, session.get_one(rows.Cluster, session.get_one(rows.Job, job).cluster_id), "j2").id
    for number in range(3):
        assign(session, node, job, f"p-{number}")
        assign(session, node, other, f"q-{number}")
    assert [directive.job_id for directive in queries.current(session, node)] == [job, other]


def test_a_directive_stays_current_after_its_delivery(session: Session) -> None:
    node, job = place(session)
    assign(session, node, job, "p-1")
    (directive,) = queries.current(session, node)
    changes.report_delivered(session, [directive.id, directive.id, 999_999], now=NOW)
    changes.report_delivered(session, [directive.id], now=NOW)
    assert (directive.state, directive.delivered_at) == (DirectiveState.DELIVERED, NOW)
    assert queries.current(session, node) == [directive]


def test_what_was_delivered_too_late_stays_superseded(session: Session) -> None:
    node, job = place(session)
    assign(session, node, job, "p-1")
    (old,) = queries.current(session, node)
    assign(session, node, job, "p-2")
    changes.report_delivered(session, [old.id], now=NOW)
    assert all_states(session) == [DirectiveState.SUPERSEDED, DirectiveState.ISSUED]


def test_directives_are_withdrawn_for_one_job_or_for_all(session: Session) -> None:
    node, job = place(session)
    other = rows.job(session, session.get_one(rows.Cluster, session.get_one(rows.Job, job).cluster_id), "j2").id
    assign(session, node, job, "p-1")
    assign(session, node, other, "q-1")
    changes.settle_withdrawn(session, node, job, DirectiveState.DONE, now=NOW)
    assert [directive.job_id for directive in queries.current(session, node)] == [other]
    changes.settle_withdrawn(session, node, None, DirectiveState.EXPIRED, now=NOW)
    assert queries.current(session, node) == []


def test_a_node_hears_of_its_directive_when_it_is_committed(sessions: Sessions, listen: Callable[..., Ear]) -> None:
    with unit_of_work(sessions) as session:
        node, job = place(session)
    ear = listen(DIRECTIVE)
    with unit_of_work(sessions) as session:
        assign(session, node, job, "p-1")
        assert ear.heard(within_s=0.1) == []
    assert ear.heard() == [node]
    with unit_of_work(sessions) as session:
        assign(session, node, job, "p-1")
    assert ear.heard(within_s=0.2) == []


def test_a_delivery_and_a_newer_assignment_at_once_leave_one_current(sessions: Sessions) -> None:
    """The stream says delivered while the reconciler supersedes: whoever comes second must not bring the old one back."""
    with unit_of_work(sessions) as session:
        node, job = place(session)
        assign(session, node, job, "p-0")
    for turn in range(1, 8):
        with sessions() as session:
            ids = [directive.id for directive in queries.current(session, node)]
        start = threading.Barrier(2)
        errors: list[BaseException] = []

        def together(work: Callable[[Session], None], start: threading.Barrier = start, errors: list = errors) -> None:
            try:
                start.wait(timeout=10)
                with unit_of_work(sessions) as session:
                    work(session)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        works = (
            lambda session, ids=ids: changes.report_delivered(session, ids, now=NOW),
            lambda session, turn=turn: assign(session, node, job, f"p-{turn}"),
        )
        threads = [threading.Thread(target=together, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        assert not errors
        with sessions() as session:
            (current,) = queries.current(session, node)
            assert current.assignment["processes"] == [{"id": f"p-{turn}"}]
