from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from models.events import Event
from models.job import changes, queries, reports
from models.job.reports import Committed, Reform
from models.job.states import ProcessState
from models.job.table import Job, JobProcess
from models.notify import NUDGE
from models.session import Sessions, unit_of_work
from tests import rows
from tests.postgres import Ear

NOW = rows.NOW
SECOND = timedelta(seconds=1)


def at(number: int) -> Committed:
    return Committed(number=number, loss=10.0 - number, seconds=0.5, at=NOW + number * SECOND)


def reform(rank: int, *, generation: int = 1, step: int = 0, source: str = "initial") -> Reform:
    return Reform(generation=generation, rank=rank, step=step, source=source, bytes_moved=0, phases={"formed": 1.0})


@pytest.fixture
def job(session: Session) -> Job:
    return rows.job(session, rows.cluster(session))


@pytest.fixture
def crew(session: Session, job: Job) -> list[JobProcess]:
    """Two members of generation 1 and a spare, all ready."""
    made = rows.processes(session, job, 3)
    changes.settle_generation(session, job, made[:2], cause="first", evidence_at=None, now=NOW)
    job.reconcile_at = None
    return made


def form(session: Session, crew: list[JobProcess], *, generation: int = 1, step: int = 0) -> None:
    for rank, process in enumerate(crew):
        reports.report_reformed(session, process.id, reform(rank, generation=generation, step=step), now=NOW + SECOND)


def test_a_report_of_an_unknown_process_or_job_is_ignored(session: Session) -> None:
    reports.report_process(session, "p-unknown", ProcessState.READY, now=NOW)
    reports.report_broken(session, "p-unknown", 1, message="", now=NOW)
    reports.report_reformed(session, "p-unknown", reform(0), now=NOW)
    reports.report_finished(session, "p-unknown", 1, step=1, digest=None, now=NOW)
    reports.report_failed(session, "p-unknown", traceback="", now=NOW)
    reports.report_progress(session, "job-unknown", 1, [at(0)])


def test_an_exit_is_kept_with_its_code_and_wakes_the_job(session: Session, job: Job, crew: list[JobProcess]) -> None:
    reports.report_process(session, crew[0].id, ProcessState.EXITED, now=NOW, exit_code=3, tail="the end\x00")
    assert (crew[0].state, crew[0].exit_code) == (ProcessState.EXITED, 3)
    assert job.reconcile_at == NOW
    session.refresh(crew[0])
    assert crew[0].tail == "the end\N{REPLACEMENT CHARACTER}"


def test_a_ready_that_comes_after_finished_does_not_call_the_process_back(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    reports.report_finished(session, crew[0].id, 1, step=10, digest="d", now=NOW)
    job.reconcile_at = None
    reports.report_process(session, crew[0].id, ProcessState.READY, now=NOW + SECOND)
    assert crew[0].state is ProcessState.FINISHED
    assert job.reconcile_at is None


def test_what_was_learned_of_a_process_stays_as_it_was_first_told(session: Session, crew: list[JobProcess]) -> None:
    reports.report_process(session, crew[0].id, ProcessState.EXITED, now=NOW, failure="It ended while its node's agent was down.")
    reports.report_process(session, crew[0].id, ProcessState.EXITED, now=NOW, exit_code=1, failure="another story")
    assert (crew[0].exit_code, crew[0].failure) == (1, "It ended while its node's agent was down.")


def test_a_process_that_was_given_up_no_longer_counts(session: Session, job: Job, crew: list[JobProcess]) -> None:
    changes.settle_given_up(session, job, crew[0], why="node lost", now=NOW)
    job.reconcile_at = None
    reports.report_process(session, crew[0].id, ProcessState.EXITED, now=NOW, exit_code=0)
    reports.report_broken(session, crew[0].id, 1, message="reset", now=NOW)
    reports.report_reformed(session, crew[0].id, reform(0), now=NOW)
    reports.report_finished(session, crew[0].id, 1, step=1, digest="d", now=NOW)
    reports.report_failed(session, crew[0].id, traceback="Boom", now=NOW)
    assert (crew[0].state, crew[0].exit_code, crew[0].broken, crew[0].reformed, crew[0].digest) == (
        ProcessState.LOST,
        None,
        0,
        0,
        None,
    )
    assert crew[0].failure == "node lost"
    assert job.reconcile_at is None


def test_a_broken_collective_is_evidence_once(session: Session, job: Job, crew: list[JobProcess]) -> None:
    reports.report_broken(session, crew[0].id, 1, message="connection reset", now=NOW)
    reports.report_broken(session, crew[0].id, 1, message="connection reset", now=NOW + SECOND)
    assert (crew[0].broken, crew[0].broken_at, job.reconcile_at) == (1, NOW, NOW)
    assert named(session, "collective broken") == 1


def test_a_broken_collective_of_an_old_generation_is_no_news(session: Session, job: Job, crew: list[JobProcess]) -> None:
    changes.settle_generation(session, job, crew[1:], cause="second", evidence_at=None, now=NOW)
    job.reconcile_at = None
    reports.report_broken(session, crew[1].id, 1, message="connection reset", now=NOW)
    assert (crew[1].broken, job.reconcile_at) == (0, None)


def test_a_generation_is_formed_exactly_when_its_last_member_has_its_state(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    reports.report_reformed(session, crew[1].id, reform(1), now=NOW + SECOND)
    reports.report_reformed(session, crew[1].id, reform(1), now=NOW + 2 * SECOND)
    (generation,) = queries.generations(session, job.id)
    assert generation.formed_at is None
    reports.report_reformed(session, crew[0].id, reform(0), now=NOW + 3 * SECOND)
    reports.report_reformed(session, crew[1].id, reform(1, step=9), now=NOW + 4 * SECOND)
    assert (generation.formed_at, generation.step, generation.steps_lost) == (NOW + 3 * SECOND, 0, 0)
    assert sorted(generation.reports) == ["0", "1"]


def test_a_member_that_joins_wakes_its_job_when_it_is_the_last_or_speaks_of_an_older_generation(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    job.reconcile_at = None
    reports.report_reformed(session, crew[1].id, reform(1), now=NOW)
    assert job.reconcile_at is None
    reports.report_reformed(session, crew[0].id, reform(0), now=NOW + SECOND)
    assert job.reconcile_at == NOW + SECOND
    for _ in range(2):
        changes.settle_generation(session, job, crew[:2], cause="again", evidence_at=None, now=NOW)
    job.reconcile_at = None
    reports.report_reformed(session, crew[0].id, reform(0, generation=2), now=NOW)
    assert job.reconcile_at == NOW, "it may be the only one that holds the state"


def test_only_the_member_of_a_rank_may_speak_for_it(session: Session, job: Job, crew: list[JobProcess]) -> None:
    reports.report_reformed(session, crew[2].id, reform(0), now=NOW)
    reports.report_reformed(session, crew[0].id, reform(1), now=NOW)
    reports.report_reformed(session, crew[0].id, reform(7), now=NOW)
    reports.report_reformed(session, crew[0].id, reform(0, generation=5), now=NOW)
    assert queries.generations(session, job.id)[0].reports == {}
    assert job.reconcile_at is None


def test_a_late_report_of_an_old_generation_does_not_take_the_process_back(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    changes.settle_generation(session, job, crew[1:], cause="second", evidence_at=None, now=NOW)
    reports.report_reformed(session, crew[1].id, reform(0, generation=2, step=8), now=NOW)
    reports.report_reformed(session, crew[1].id, reform(1, generation=1, step=3), now=NOW)
    assert (crew[1].reformed, crew[1].step) == (2, 8)


def test_steps_are_counted_once_however_often_they_are_told(session: Session, job: Job, crew: list[JobProcess]) -> None:
    form(session, crew[:2])
    reports.report_progress(session, job.id, 1, [at(0), at(1), at(1)])
    reports.report_progress(session, job.id, 1, [at(1), at(2)])
    reports.report_progress(session, job.id, 1, [at(0), at(1)])
    assert (job.step, job.productive_s, job.loss_first, job.loss_last) == (3, 1.5, 10.0, 8.0)
    assert [step.number for step in queries.steps(session, job.id)] == [0, 1, 2]


def test_losses_that_come_late_do_not_pass_for_the_newest(session: Session, job: Job, crew: list[JobProcess]) -> None:
    reports.report_progress(session, job.id, 1, [at(5)])
    reports.report_progress(session, job.id, 1, [at(2)])
    assert (job.loss_first, job.loss_last, job.step) == (8.0, 5.0, 6)


def test_a_script_that_tells_no_loss_has_none(session: Session, job: Job, crew: list[JobProcess]) -> None:
    reports.report_progress(session, job.id, 1, [Committed(number=0, loss=None, seconds=1.0, at=NOW)])
    assert (job.loss_first, job.loss_last, job.step) == (None, None, 1)


def test_an_empty_progress_report_changes_nothing(session: Session, job: Job, crew: list[JobProcess]) -> None:
    reports.report_progress(session, job.id, 1, [])
    assert job.step == 0


def test_a_thousand_steps_may_come_in_one_report(session: Session, job: Job, crew: list[JobProcess]) -> None:
    reports.report_progress(session, job.id, 1, [at(number) for number in range(12_000)])
    assert (job.step, job.productive_s) == (12_000, 6000.0)


def test_a_generation_that_goes_on_where_the_last_one_was_has_lost_nothing(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    second = recover(session, job, crew, went_to=10, goes_on=10)
    assert second.steps_lost == 0


def test_a_generation_that_goes_back_counts_the_steps_it_must_do_again(session: Session, job: Job, crew: list[JobProcess]) -> None:
    second = recover(session, job, crew, went_to=10, goes_on=7)
    assert second.steps_lost == 3


def test_steps_of_the_new_generation_told_before_it_has_formed_are_not_lost(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    """Rank 0's agent may be quicker than the agent of the last member."""
    second = recover(session, job, crew, went_to=10, goes_on=10, form_last=False)
    reports.report_progress(session, job.id, 2, [at(10), at(11)])
    reports.report_reformed(session, crew[2].id, reform(1, generation=2, step=10), now=NOW)
    assert (second.formed_at, second.steps_lost, job.step) == (NOW, 0, 12)


def test_a_step_told_after_the_next_generation_has_formed_without_it_is_lost(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    second = recover(session, job, crew, went_to=10, goes_on=10)
    reports.report_progress(session, job.id, 1, [at(10), at(11)])
    session.refresh(second)
    assert second.steps_lost == 2


def test_a_step_that_one_member_has_and_another_rolls_forward_is_never_lost(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    second = recover(session, job, crew, went_to=10, goes_on=9, form_last=False)
    assert second.steps_lost == 0
    reports.report_reformed(session, crew[2].id, reform(1, generation=2, step=10), now=NOW)
    assert (second.step, second.steps_lost) == (10, 0)


def test_a_generation_that_never_formed_has_lost_nothing_and_hides_nothing(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    second = recover(session, job, crew, went_to=10, goes_on=0, form_last=False)
    changes.settle_generation(session, job, crew[1:], cause="third", evidence_at=None, now=NOW)
    form(session, crew[1:], generation=3, step=7)
    third = queries.generations(session, job.id)[2]
    assert (second.steps_lost, third.steps_lost) == (0, 3)


def test_steps_done_again_are_lost_once(session: Session, job: Job, crew: list[JobProcess]) -> None:
    recover(session, job, crew, went_to=10, goes_on=7)
    reports.report_progress(session, job.id, 2, [at(7)])
    changes.settle_generation(session, job, crew[1:], cause="third", evidence_at=None, now=NOW)
    form(session, crew[1:], generation=3, step=8)
    assert [generation.steps_lost for generation in queries.generations(session, job.id)] == [0, 3, 0]
    assert job.productive_s == 5.0


def test_the_first_step_of_a_generation_is_the_earliest_it_trained_itself(
    session: Session, job: Job, crew: list[JobProcess]
) -> None:
    second = recover(session, job, crew, went_to=10, goes_on=11)
    reports.report_progress(session, job.id, 2, [at(10)])  # rolled forward in the reform
    assert second.first_step_at is None
    reports.report_progress(session, job.id, 2, [at(12)])
    reports.report_progress(session, job.id, 2, [at(11), at(13)])
    assert second.first_step_at == NOW + 11 * SECOND


def test_finishing_counts_in_the_current_generation_only(session: Session, job: Job, crew: list[JobProcess]) -> None:
    changes.settle_generation(session, job, crew[:2], cause="second", evidence_at=None, now=NOW)
    reports.report_finished(session, crew[0].id, 1, step=10, digest="old", now=NOW)
    assert (crew[0].state, crew[0].digest) == (ProcessState.READY, None)
    reports.report_finished(session, crew[0].id, 2, step=10, digest="new", now=NOW)
    assert (crew[0].state, crew[0].digest, crew[0].step) == (ProcessState.FINISHED, "new", 10)


def test_a_process_whose_ready_was_lost_can_still_finish(session: Session, job: Job, crew: list[JobProcess]) -> None:
    (late,) = changes.settle_processes(session, job, [(crew[0].node_id, 1)], now=NOW)
    changes.settle_generation(session, job, [late], cause="second", evidence_at=None, now=NOW)
    reports.report_reformed(session, late.id, reform(0, generation=2), now=NOW)
    assert late.state is ProcessState.READY
    reports.report_finished(session, late.id, 2, step=3, digest=None, now=NOW)
    assert late.state is ProcessState.FINISHED


@pytest.mark.parametrize("traceback", ["", "  \n", "Traceback:\n  x\nValueError: too warm\n"])
def test_a_traceback_is_kept_whatever_it_looks_like(session: Session, crew: list[JobProcess], traceback: str) -> None:
    reports.report_failed(session, crew[0].id, traceback=traceback, now=NOW)
    reports.report_failed(session, crew[0].id, traceback="another", now=NOW)
    assert crew[0].failure == traceback
    assert named(session, "user code failed") == 1


def test_a_report_is_heard_by_the_relay_when_it_is_committed(sessions: Sessions, listen: Callable[..., Ear]) -> None:
    with unit_of_work(sessions) as session:
        job = rows.job(session, rows.cluster(session))
        (process,) = rows.processes(session, job, 1)
    ear = listen(NUDGE)
    with unit_of_work(sessions) as session:
        reports.report_process(session, process.id, ProcessState.EXITED, now=NOW, signal=9)
    assert ear.heard() == [f"job:{job.id}"]


def recover(session: Session, job: Job, crew: list[JobProcess], *, went_to: int, goes_on: int, form_last: bool = True):
    """Generation 1 commits steps; rank 0 dies; generation 2 of the other two goes on with a step."""
    form(session, crew[:2])
    reports.report_progress(session, job.id, 1, [at(number) for number in range(went_to)])
    reports.report_process(session, crew[0].id, ProcessState.EXITED, now=NOW, signal=9)
    second = changes.settle_generation(session, job, crew[1:], cause="second", evidence_at=NOW, now=NOW)
    form(session, crew[1:] if form_last else crew[1:2], generation=2, step=goes_on)
    return second


def named(session: Session, name: str) -> int:
    return len(session.scalars(select(Event.id).where(Event.name == name)).all())
