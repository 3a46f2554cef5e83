"""The law of ``models.job.reports``: whatever comes twice, late or in another order, the rows end the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect
from sqlalchemy.orm import Session

from models.job import changes, queries, reports
from models.job.evidence import Hang, Lag, report_hung, report_straggler
from models.job.reports import Committed, Reform
from models.job.states import ProcessState
from models.job.table import Job
from tests import rows

NOW = rows.NOW
Report = Callable[[Session], None]


def step(number: int, *, later_s: float = 0.0) -> Committed:
    """``later_s``: it is done again so much later, and takes a little longer then."""
    at = NOW + timedelta(seconds=number + later_s)
    return Committed(number=number, loss=8.0 - number / 2, seconds=0.5 if later_s else 0.25, at=at, stall_s=0.125)


def history(job_id: str, dead: str, survivor: str, spare: str) -> dict[str, Report]:
    """Two ranks train; rank 0 dies after step 5, of which its peer never heard; the spare takes its place and they finish."""

    def state(process: str, new: ProcessState, **facts: Any) -> Report:
        return partial(reports.report_process, process_id=process, new=new, now=NOW, **facts)

    def reformed(process: str, generation: int, rank: int, at_step: int, source: str) -> Report:
        told = Reform(generation=generation, rank=rank, step=at_step, source=source, bytes_moved=rank, phases={"formed": 1.5})
        return partial(reports.report_reformed, process_id=process, reform=told, now=NOW)

    def progress(generation: int, *numbers: int) -> Report:
        """Steps as they were told, the newest of the generation before told again."""
        steps = [step(number) for number in numbers]
        return partial(reports.report_progress, job_id=job_id, generation_number=generation, steps=steps)

    def finished(process: str) -> Report:
        return partial(reports.report_finished, process_id=process, generation=2, step=8, digest="d" * 64, now=NOW)

    def hung(process: str, generation: int, at_step: int, how: str, seconds: float) -> Report:
        return partial(report_hung, process_id=process, hang=Hang(generation, at_step, how, seconds, 20.0, "where"), now=NOW)

    def lags(process: str, generation: int, at_step: int, *, has_caught_up: bool = False) -> Report:
        lag = Lag(generation, at_step, 0.4, 0.1, 32, has_caught_up)
        return partial(report_straggler, process_id=process, lag=lag, now=NOW)

    told: dict[str, Report] = {}
    for pid, process in enumerate((dead, survivor, spare), start=100):
        told[f"{pid} started"] = state(process, ProcessState.STARTED, pid=pid)
        told[f"{pid} ready"] = state(process, ProcessState.READY, pid=pid)
    return told | {
        "dead reformed": reformed(dead, 1, 0, 0, "initial"),
        "survivor reformed": reformed(survivor, 1, 1, 0, "initial"),
        "steps 0-2": progress(1, 0, 1, 2),
        "steps 3-5": progress(1, 3, 4, 5),
        "dead exited": state(dead, ProcessState.EXITED, signal=9, tail="Killed"),
        "survivor broken": partial(reports.report_broken, process_id=survivor, generation=2, message="reset", now=NOW),
        "spare reformed": reformed(spare, 2, 0, 5, "peer"),
        "survivor reformed again": reformed(survivor, 2, 1, 5, "kept"),
        "steps 5-6": partial(reports.report_progress, job_id=job_id, generation_number=2, steps=[step(5, later_s=3), step(6)]),
        "step 7": progress(2, 7),
        "survivor raised": partial(reports.report_raised, process_id=survivor, generation=1, traceback="First", now=NOW),
        "survivor raised again": partial(reports.report_raised, process_id=survivor, generation=2, traceback="Second", now=NOW),
        "dead waits": hung(dead, 1, 5, "waiting", 21.0),
        "survivor waited": hung(survivor, 1, 5, "waiting", 21.0),
        "survivor computes": hung(survivor, 2, 6, "computing", 21.0),
        "survivor computes on": hung(survivor, 2, 6, "computing", 42.0),
        "dead lags": lags(dead, 1, 4),
        "survivor lags": lags(survivor, 1, 3),
        "survivor has caught up": lags(survivor, 1, 5, has_caught_up=True),
        "survivor lags again": lags(survivor, 2, 6),
        "spare finished": finished(spare),
        "survivor finished": finished(survivor),
        "spare failed": partial(reports.report_failed, process_id=spare, traceback="Boom", now=NOW),
        "survivor exited": state(survivor, ProcessState.EXITED, exit_code=0),
    }


@pytest.fixture
def job(session: Session) -> Job:
    """Both memberships are published: what is tested is how the facts of both meet."""
    job = rows.job(session, rows.cluster(session))
    dead, survivor, spare = changes.settle_processes(
        session, job, [(node.id, 0) for node in rows.nodes(session, session.get_one(rows.Cluster, job.cluster_id), 3)], now=NOW
    )
    changes.settle_generation(session, job, [dead, survivor], cause="first", evidence_at=None, now=NOW)
    changes.settle_generation(session, job, [spare, survivor], cause="second", evidence_at=NOW, now=NOW)
    session.commit()
    return job


@pytest.fixture
def told(session: Session, job: Job) -> dict[str, Report]:
    first, second = queries.generations(session, job.id)
    return history(job.id, first.members[0], first.members[1], second.members[0])


@pytest.fixture
def in_order(session: Session, job: Job, told: dict[str, Report]) -> dict[str, Any]:
    return end_of(session, job, list(told.values()))


def end_of(session: Session, job: Job, told: list[Report]) -> dict[str, Any]:
    """The rows after these reports, which are then taken back."""
    with session.begin_nested() as attempt:
        for report in told:
            report(session)
        session.flush()
        session.expire_all()
        found = {
            "job": columns(job, but={"reconcile_at"}),
            "processes": [columns(process) for process in queries.processes(session, job.id)],
            "generations": [columns(generation) for generation in queries.generations(session, job.id)],
            "steps": [columns(row) for row in queries.steps(session, job.id)],
        }
        attempt.rollback()
    session.expire_all()
    return found


def columns(row: Any, *, but: frozenset[str] | set[str] = frozenset()) -> dict[str, Any]:
    return {name: getattr(row, name) for name in inspect(type(row)).column_attrs.keys() if name not in but}  # noqa: SIM118


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_reports_that_come_twice_or_in_any_order_end_in_the_same_rows(
    session: Session, job: Job, told: dict[str, Report], in_order: dict[str, Any], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(sorted(told)), max_size=10), label="told again")
    order = data.draw(st.permutations(sorted(told) + again), label="order")
    assert end_of(session, job, [told[name] for name in order]) == in_order


def test_the_history_in_order_ends_as_it_should(in_order: dict[str, Any]) -> None:
    job, generations = in_order["job"], in_order["generations"]
    assert (job["step"], job["productive_s"], job["loss_last"]) == (8, 2.0, 4.5)
    assert [(made["step"], made["steps_lost"], made["formed_at"]) for made in generations] == [(0, 0, NOW), (5, 1, NOW)]
    by_pid = {process["pid"]: process for process in in_order["processes"]}
    assert [by_pid[pid]["state"].value for pid in (100, 101, 102)] == ["exited", "exited", "finished"]
