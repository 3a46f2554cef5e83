"""Spares that a job file leaves to the planner."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from models.events import Event
from models.job.states import ALIVE, JobState
from models.session import unit_of_work
from workers import tending
from workers.plane import Plane
from workers.plans.spares import MOST

AUTO = {"command": ["python", "train.py"], "spares": "auto"}


def told(plane, job_id: str) -> list[str]:
    with unit_of_work(plane.sessions) as session:
        wanted = select(Event).where(Event.job_id == job_id, Event.name == "spares sized").order_by(Event.sequence)
        return [event.description for event in session.scalars(wanted)]


def whole(plane) -> Plane:
    return Plane(plane.sessions, plane.clock, plane.driver, plane.provider)


def test_a_job_that_leaves_its_spares_to_the_planner_gets_one_and_is_told_why(plane):
    job_id = plane.training(plane.serving(4), replicas=2, spares=0, spec=AUTO)
    assert tending.size_spares(whole(plane)) == 1
    assert tending.size_spares(whole(plane)) == 0, "nothing has changed"
    assert plane.job_row(job_id).spares == 1
    assert told(plane, job_id)[0].startswith("1 spare: one fault in ")
    plane.run_until(lambda: len([one for one in plane.processes(job_id) if one.rank is None and one.state in ALIVE]) == 1)


def test_a_job_that_says_how_many_spares_it_wants_keeps_them(plane):
    job_id = plane.training(plane.serving(4), replicas=2, spares=0)
    assert tending.size_spares(whole(plane)) == 0
    assert (plane.job_row(job_id).spares, told(plane, job_id)) == (0, [])


def test_a_job_whose_ranks_die_all_the_time_gets_more_spares_than_a_calm_one(plane):
    job_id = plane.training(plane.serving(6), replicas=3, spares=1, spec=AUTO, max_restarts=1000)
    for generation in range(2, 9):
        plane.exit(plane.members(job_id)[0].id, signal=9)
        plane.run_until(
            lambda generation=generation: (
                len(plane.generations(job_id)) >= generation and plane.job_state(job_id) is JobState.TRAINING
            )
        )
    tending.size_spares(whole(plane))
    assert 1 < plane.job_row(job_id).spares <= min(3, MOST)
    assert plane.clock.at - plane.job_row(job_id).created_at < timedelta(hours=1)
