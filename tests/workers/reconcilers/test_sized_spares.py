"""Spares that a job file leaves to the planner."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select, update

from models.events import Event
from models.job.states import ALIVE, JobState
from models.node import queries as nodes
from models.node.changes import settle_node
from models.node.states import NodeState
from models.node.table import Node
from models.session import unit_of_work
from workers import tending
from workers.plane import Plane

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


def test_a_job_whose_ranks_die_all_the_time_gets_more_spares_where_nodes_take_long(plane):
    job_id = plane.training(plane.serving(6), replicas=3, spares=1, spec=AUTO, max_restarts=1000)
    for generation in range(2, 9):
        plane.exit(plane.members(job_id)[0].id, signal=9)
        plane.run_until(
            lambda generation=generation: (
                len(plane.generations(job_id)) >= generation and plane.job_state(job_id) is JobState.TRAINING
            )
        )
    assert tending.size_spares(whole(plane)) == 0, "a node is made up for in seconds"
    plane.clock.at += timedelta(hours=2)
    with unit_of_work(plane.sessions) as session:
        for node_id in sorted(session.scalars(select(Node.id).where(Node.state == NodeState.READY))):
            for state in (NodeState.SUSPECT, NodeState.READY):
                settle_node(session, nodes.get(session, node_id, lock=True), state, why="It was away.", now=plane.clock.at)
    assert tending.size_spares(whole(plane)) == 0, "what came later is no part of that"
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(created_at=Node.created_at - timedelta(minutes=10)))
    assert tending.size_spares(whole(plane)) == 1
    assert plane.job_row(job_id).spares == 2
    assert "its replacement takes 60" in told(plane, job_id)[-1]
    plane.run_until(lambda: len([one for one in plane.processes(job_id) if one.rank is None and one.state in ALIVE]) == 2)
