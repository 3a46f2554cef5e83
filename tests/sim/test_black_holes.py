"""R-13: whoever cannot be seen is not dead. The way between the control plane and agents is cut, and training goes on untouched."""

from __future__ import annotations

import logging

import pytest

from models.job.reports import Committed, report_progress
from models.job.states import JobState
from models.node.states import NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane

EVERY_S = 5.0


class BlackHole:
    """A job on a plane whose agents can be cut off; its ranks train on, and whoever is heard tells of it."""

    def __init__(self, plane: SmallPlane) -> None:
        self.plane = plane
        self.job_id = plane.training(plane.serving(3), replicas=2, spares=1)
        self.before = [process.id for process in plane.members(self.job_id)]
        self.step = 0

    def instance(self, rank: int) -> str:
        return str(self.plane.node(self.plane.members(self.job_id)[rank].node_id).instance_id)

    def passes(self, seconds: float) -> None:
        for _ in range(int(seconds / EVERY_S)):
            self.step += 1
            if self.instance(0) not in self.plane.dead:
                step = Committed(self.step, 1.0, EVERY_S, self.plane.clock.at)
                with unit_of_work(self.plane.sessions) as session:
                    report_progress(session, self.job_id, 1, [step])
            self.plane.run(EVERY_S, every=EVERY_S)

    def untouched(self) -> bool:
        is_same = [process.id for process in self.plane.members(self.job_id)] == self.before
        return is_same and len(self.plane.generations(self.job_id)) == 1


@pytest.fixture
def hole(sessions, listen, caplog):
    yield BlackHole(SmallPlane(sessions, listen(NUDGE)))
    assert not [record.exc_text for record in caplog.records if record.name == "workers.driver" and record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("rank", "times"),
    [
        pytest.param(1, 1, id="a node that others vouch for"),
        pytest.param(1, 5, id="five times", marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
        pytest.param(0, 1, id="the node that would tell of the steps"),
    ],
)
def test_black_holes_of_a_minute_restart_nothing_and_an_end_that_the_provider_confirms_restarts_one(hole, rank, times):
    victim = hole.instance(rank)
    for _ in range(times):
        hole.plane.silence(victim)
        hole.passes(60)
        assert hole.untouched()
        hole.plane.speak_again(victim)
        hole.passes(5)
        assert hole.plane.states()["node"] == ["ready"] * 3
    hole.plane.silence(victim)
    hole.passes(10)
    node = hole.plane.node(hole.plane.members(hole.job_id)[rank].node_id)
    hole.plane.provider.kill(node.id)
    hole.plane.run_until(lambda: len(hole.plane.generations(hole.job_id)) == 2, seconds=30)
    hole.plane.run_until(lambda: hole.plane.job_state(hole.job_id) is JobState.TRAINING)
    assert hole.plane.node(node.id).state in (NodeState.RELEASING, NodeState.GONE)
    survivors = [one for place, one in enumerate(hole.before) if place != rank]
    assert [one.id for one in hole.plane.members(hole.job_id) if one.id in hole.before] == survivors
    assert len(hole.plane.generations(hole.job_id)) == 2


def test_a_node_whose_job_stands_still_since_it_fell_silent_is_given_up_though_its_provider_says_that_it_lives(hole):
    victim = hole.instance(1)
    hole.passes(10)
    hole.plane.silence(victim)
    hole.plane.run(75, every=EVERY_S)
    assert (
        "silent"
        in hole.plane.node(next(one.node_id for one in hole.plane.processes(hole.job_id) if one.id == hole.before[1])).lost_because
    )
    assert len(hole.plane.generations(hole.job_id)) == 2
