"""Slow ranks on real rows: replaced where the job file says so and a spare is ready, and otherwise told and no more."""

from __future__ import annotations

import logging
from datetime import timedelta

from sqlalchemy import select

from models.events import Event
from models.job.evidence import Lag, report_straggler
from models.job.states import ALIVE, JobState, ProcessState
from models.job.table import Job
from models.session import unit_of_work
from tests import rows
from workers import tending
from workers.plane import Plane

SPEC = {"command": ["python", "train.py"]}
REPLACE = SPEC | {"stragglers": "replace"}


def lag(plane, job_id: str, rank: int, step: int = 90, *, has_caught_up: bool = False) -> str:
    """The rank tells that it holds the others up, or does no more."""
    process, generation = plane.members(job_id)[rank], plane.job_row(job_id).generation
    told = Lag(generation, step, own_s=0.4, others_s=0.1, steps=32, has_caught_up=has_caught_up)
    with unit_of_work(plane.sessions) as session:
        report_straggler(session, process.id, told, now=plane.clock.at)
    return process.id


def process(plane, job_id: str, process_id: str):
    return next(one for one in plane.processes(job_id) if one.id == process_id)


def spares(plane, job_id: str) -> list[str]:
    return [one.node_id for one in plane.processes(job_id) if one.rank is None and one.state in ALIVE]


def events(plane, job_id: str, name: str) -> list[str]:
    with unit_of_work(plane.sessions) as session:
        return list(session.scalars(select(Event.description).where(Event.job_id == job_id, Event.name == name)))


def test_a_slow_rank_moves_to_the_spare_and_its_process_is_let_go(plane):
    job_id = plane.training(plane.serving(5), spec=REPLACE)
    (spare,) = spares(plane, job_id)
    slow = process(plane, job_id, lag(plane, job_id, 1))
    plane.driver.reconcile("job", job_id)
    generation = plane.generations(job_id)[-1]
    assert (generation.number, process(plane, job_id, generation.members[1]).node_id) == (2, spare)
    assert "rank 1 needs 400 ms for its part of a step, they need 100 ms" in generation.cause
    assert process(plane, job_id, slow.id).state is ProcessState.READY, "its state may still be needed"
    plane.run_until(lambda: plane.job_state(job_id) is JobState.TRAINING)
    plane.run_until(lambda: process(plane, job_id, slow.id).state is ProcessState.LOST)
    plane.run(5)
    (free,) = {node.id for node in plane.nodes(plane.job_row(job_id).cluster_id)} - {
        *(one.node_id for one in plane.members(job_id)),
        slow.node_id,
    }
    assert spares(plane, job_id) == [free]
    assert "held the others up" in events(plane, job_id, "process released")[0]
    assert not events(plane, job_id, "process lost")


def test_a_replaced_rank_is_neither_a_restart_nor_a_fault(plane, caplog):
    job_id = plane.training(plane.serving(4), spec=REPLACE)
    with unit_of_work(plane.sessions) as session:
        rows.namespace(session, session.get_one(Job, job_id))
    lag(plane, job_id, 1)
    plane.run(20)
    row = plane.job_row(job_id)
    assert (row.restarts, row.recoveries, row.state) == (0, 1, JobState.TRAINING)
    assert plane.states()["node"] == ["ready"] * 4
    caplog.set_level(logging.INFO)
    tending.observe_faults(Plane(plane.sessions, plane.clock, plane.driver, plane.provider))
    assert ": 0 faults in " in caplog.text


def test_the_next_slow_rank_is_replaced_when_the_period_is_over(plane):
    job_id = plane.training(plane.serving(6), spec=REPLACE, spares=2)
    lag(plane, job_id, 1)
    plane.run(20)
    lag(plane, job_id, 2)
    plane.run(300, every=4.0)
    assert len(plane.generations(job_id)) == 2
    plane.run(301, every=4.0)
    first, second = plane.generations(job_id)[1:]
    assert timedelta(minutes=10) <= second.decided_at - first.decided_at < timedelta(minutes=11)
    assert first.members[1] == second.members[1]


def test_a_rank_that_has_caught_up_before_a_spare_is_ready_stays_and_one_that_has_not_goes(plane):
    job_id = plane.training(plane.serving(4), spec=REPLACE)
    for step, has_caught_up in ((90, True), (200, False)):
        assert len(plane.generations(job_id)) == 1
        (spare,) = (one for one in plane.processes(job_id) if one.rank is None and one.state in ALIVE)
        plane.exit(spare.id, signal=9)
        lag(plane, job_id, 1, step)
        plane.work()
        if has_caught_up:
            lag(plane, job_id, 1, step + 50, has_caught_up=True)
        plane.run(20)
    assert len(plane.generations(job_id)) == 2
    assert len(events(plane, job_id, "straggler caught up")) == 1


def test_a_job_that_does_not_say_so_keeps_its_slow_ranks(plane):
    job_id = plane.training(plane.serving(4), spec=SPEC)
    lag(plane, job_id, 1)
    plane.run(20)
    assert len(plane.generations(job_id)) == 1
    assert len(events(plane, job_id, "straggler")) == 1
