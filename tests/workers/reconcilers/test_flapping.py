"""An elastic job while capacity comes and goes: the whole plane on a clock that is told the time."""

from __future__ import annotations

import pytest

from models.job.changes import request_lift, request_surrender
from models.job.queries import get
from models.job.states import JobState
from models.session import unit_of_work

SPEC = {"command": ["python", "train.py"], "elastic": {"min": 1, "max": 2, "scaling_timeout": 0.0}}
PERIOD_S, ROUNDS = 10, 30


@pytest.mark.slow
def test_capacity_that_flaps_every_ten_seconds_changes_the_size_a_few_times_only(plane):
    cluster_id = plane.serving(2)
    job_id = plane.training(cluster_id, replicas=2, spares=0, spec=SPEC)
    sizes = []
    for _ in range(ROUNDS):
        for is_taken in (True, False):
            with unit_of_work(plane.sessions) as session:
                job = get(session, job_id, lock=True)
                if is_taken:
                    request_surrender(session, job, 1, why="another job needs a node", now=plane.clock.at)
                else:
                    request_lift(session, job, now=plane.clock.at)
            plane.run(PERIOD_S, every=2.5)
            assert plane.job_state(job_id) in (JobState.TRAINING, JobState.RESIZING)
            sizes.append(len(plane.generations(job_id)[-1].members))
    row = plane.job_row(job_id)
    assert row.resizes <= 12, "60 half periods; pauses of 15, 30, 60, 120 and 240 s"
    assert row.resizes >= 2
    assert (row.recoveries, row.restarts) == (0, 0)
    assert set(sizes) == {1, 2}
