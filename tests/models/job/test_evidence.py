from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from models.events import Event
from models.job import changes
from models.job.evidence import Anomaly, Hang, Lag, report_anomaly, report_hung, report_straggler
from models.job.table import Job, JobProcess
from tests import rows

NOW = rows.NOW
LAG = Lag(1, 90, own_s=0.4, others_s=0.1, steps=32)
COMPUTING = Hang(1, 7, "computing", 25.0, 20.0, "File train.py, line 7")


@pytest.fixture
def job(session: Session) -> Job:
    return rows.job(session, rows.cluster(session))


@pytest.fixture
def crew(session: Session, job: Job) -> list[JobProcess]:
    made = rows.processes(session, job, 3)
    changes.settle_generation(session, job, made[:2], cause="first", evidence_at=None, now=NOW)
    job.reconcile_at = None
    return made


def told(session: Session, name: str) -> list[Event]:
    return [event for event in session.scalars(select(Event)) if event.name == name]


def test_a_hang_wakes_the_job_and_its_stack_is_in_an_event(session: Session, job: Job, crew: list[JobProcess]) -> None:
    report_hung(session, crew[1].id, COMPUTING, now=NOW)
    assert job.reconcile_at == NOW
    (event,) = told(session, "process computing")
    assert event.description == "Rank 1 has made no progress for 25 s at step 7 and is computing."
    assert event.details["stack"] == "File train.py, line 7"


def test_a_hang_that_is_told_again_and_longer_is_one_event(session: Session, crew: list[JobProcess]) -> None:
    for seconds in (25.0, 50.0, 25.0):
        report_hung(session, crew[1].id, replace(COMPUTING, seconds=seconds), now=NOW)
    assert len(told(session, "process computing")) == 1
    assert crew[1].hang["seconds"] == 50.0


def test_a_word_of_an_earlier_generation_does_not_replace_a_later_one(session: Session, crew: list[JobProcess]) -> None:
    report_hung(session, crew[1].id, replace(COMPUTING, generation=2, how="waiting"), now=NOW)
    report_hung(session, crew[1].id, replace(COMPUTING, seconds=500.0), now=NOW)
    assert (crew[1].hang["generation"], crew[1].hang["how"]) == (2, "waiting")


def test_that_a_rank_waits_wakes_the_job_and_is_no_event(session: Session, job: Job, crew: list[JobProcess]) -> None:
    report_hung(session, crew[0].id, replace(COMPUTING, how="waiting"), now=NOW)
    assert job.reconcile_at == NOW
    assert not told(session, "process waiting")


def test_a_straggler_is_an_event_with_the_node_and_both_times(session: Session, job: Job, crew: list[JobProcess]) -> None:
    report_straggler(session, crew[0].id, LAG, now=NOW)
    (event,) = told(session, "straggler")
    assert "Rank 0 holds the others up: it needs 400 ms for its part of a step, they need 100 ms" in event.description
    assert event.details["node"] == crew[0].node_id
    assert job.reconcile_at is None, "nothing is done about it"
    assert crew[0].lag == {**asdict(LAG), "rank": 0}


def test_a_straggler_wakes_a_job_that_has_slow_ranks_replaced(session: Session, job: Job, crew: list[JobProcess]) -> None:
    job.spec = job.spec | {"stragglers": "replace"}
    report_straggler(session, crew[0].id, LAG, now=NOW)
    assert job.reconcile_at == NOW


def test_a_straggler_that_is_told_twice_is_one_event_and_that_it_has_caught_up_another(
    session: Session, crew: list[JobProcess]
) -> None:
    caught_up = replace(LAG, step=190, own_s=0.1, has_caught_up=True)
    for lag in (LAG, LAG, caught_up, LAG):
        report_straggler(session, crew[0].id, lag, now=NOW)
    assert [len(told(session, name)) for name in ("straggler", "straggler caught up")] == [1, 1]
    assert crew[0].lag["has_caught_up"] is True


def test_the_rank_of_a_straggler_is_the_one_that_it_had_then(session: Session, job: Job, crew: list[JobProcess]) -> None:
    changes.settle_generation(session, job, [crew[2], crew[0]], cause="second", evidence_at=None, now=NOW)
    report_straggler(session, crew[1].id, LAG, now=NOW)
    assert crew[1].lag["rank"] == 1


def test_an_anomaly_is_an_event_that_says_what_the_ranks_do(session: Session, crew: list[JobProcess]) -> None:
    report_anomaly(
        session, crew[0].id, Anomaly(1, 7, "not a number", "skip", "the loss of step 7 is nan: it is passed over"), now=NOW
    )
    (event,) = told(session, "loss not a number")
    assert event.details["action"] == "skip"


def test_words_about_a_process_that_nobody_knows_are_ignored(session: Session) -> None:
    report_hung(session, "p-unknown", COMPUTING, now=NOW)
    report_straggler(session, "p-unknown", Lag(1, 1, 1.0, 1.0, 32), now=NOW)
    report_anomaly(session, "p-unknown", Anomaly(1, 1, "spike", "stop", ""), now=NOW)
    assert not session.scalars(select(Event).where(Event.name.in_(["straggler", "loss spike"]))).all()
