"""Hours of a simulated fleet in seconds: the real plans and rows, the fleet's own agents, and a clock that is told the time."""

from __future__ import annotations

import pytest

from api.operations import goodput
from api.operations.work import Caller, Work
from models.cluster.table import Cluster
from models.job.ledger import ACCOUNTS, Account
from models.job.states import JobState
from models.notify import NUDGE
from models.session import unit_of_work
from tests import rows
from tests.sim.fleet_plane import FleetPlane
from workers.fleet.scenario import Blow, Strike


@pytest.fixture
def plane(sessions, listen):
    return lambda wire: FleetPlane(sessions, listen(NUDGE), wire=wire)


def spot_cluster(plane: FleetPlane, count: int) -> str:
    spec = {**rows.group_spec(count=count).spec, "CapacityRequirements": {"Spot": {}}}
    with unit_of_work(plane.sessions) as session:
        groups = (rows.group_spec(count=count, spec=spec),)
        cluster_id = rows.cluster(session, groups=groups, is_continuous=True).id
    plane.run_until(lambda: plane.states()["node"] == ["ready"] * count)
    return cluster_id


def measured(plane: FleetPlane, job_id: str) -> goodput.Goodput:
    with unit_of_work(plane.sessions) as session:
        work = Work(session, plane.clock.at, "us-east-1", Caller("123456789012", "test"))
        return goodput.measure(work, job_id=job_id, cluster=None)


STEPS = 100
RECLAIMS = {
    "seed": 1,
    "boot": {"seconds": [20, 60], "lifecycle_seconds": [1, 5]},
    "spot": {"per_hour": 5, "notice": 120, "noticed": 0.5},
    "training": {"steps": STEPS, "step_seconds": 30, "warm_up_seconds": 3, "reform_seconds": [1, 2], "sharded": True},
}
"""A step takes half a minute, so that an hour of them is few rows; a lost member takes its part of the state along."""


def trained_through_reclaims(plane: FleetPlane, checkpoint_every: int) -> goodput.Goodput:
    cluster_id = spot_cluster(plane, 5)
    spec = {"command": ["python", "train.py"], "env": {"SIM_CHECKPOINT_EVERY": str(checkpoint_every)}}
    job_id = plane.training(cluster_id, replicas=3, spares=1, max_restarts=100, spec=spec)
    for _ in range(300):
        if plane.job_state(job_id) is JobState.SUCCEEDED:
            break
        plane.pass_time(120)
    assert plane.job_state(job_id) is JobState.SUCCEEDED, plane.states()
    assert plane.job_row(job_id).step == STEPS
    told = measured(plane, job_id)
    print(f"checkpoints every {checkpoint_every} steps: {plane.timeline.now / 3600:.2f} h, {plane.cloud.counts}, {told}")
    return told


@pytest.mark.slow
def test_a_job_on_spot_hosts_finishes_through_five_reclaims_an_hour_and_its_goodput_is_told(plane):
    here = plane(RECLAIMS)
    told = trained_through_reclaims(here, checkpoint_every=2)
    assert here.cloud.counts["reclaims"] >= 4
    assert told.recoveries >= 3
    assert 0.5 < told.share < 1.0
    books = told.books
    assert sum(books.of(account) for account in ACCOUNTS) == books.held > 0
    assert books.of(Account.PRODUCTIVE) > books.of(Account.REFORM) > 0
    assert books.of(Account.SPARE) > 0
    assert told.ettr < told.share


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_checkpoints_the_same_reclaims_cost_more_steps_and_goodput(sessions, listen):
    shares, lost = [], []
    for every in (2, 0):
        here = FleetPlane(sessions, listen(NUDGE), wire=RECLAIMS | {"spot": {"at": [900, 1800, 2700, 3600], "noticed": 0}})
        told = trained_through_reclaims(here, checkpoint_every=every)
        shares.append(told.share)
        lost.append(told.steps_lost)
        with unit_of_work(here.sessions) as session:
            here.delete_cluster(session.query(Cluster).filter_by(state="in_service").one().id)
        here.run_until(lambda here=here: here.states()["cluster"][-1] == "deleted")
    assert lost[0] < lost[1]
    assert shares[0] > shares[1]


def test_when_six_in_ten_nodes_fall_silent_at_once_nothing_is_replaced_and_the_job_goes_on(plane):
    here = plane({"seed": 3, "training": {"steps": 1000, "step_seconds": 5}})
    cluster_id = here.serving(10, is_continuous=True)
    job_id = here.training(cluster_id, replicas=6, spares=2)
    here.watch(10)
    assert here.cloud.strike(Strike(Blow.OUTAGE, 0, share=0.6, seconds=180)) == 6
    here.watch(170)
    assert here.states()["node"].count("suspect") == 6
    here.watch(40)
    assert here.states()["node"] == ["ready"] * 10
    assert len(here.cloud.launches) == 10
    job = here.job_row(job_id)
    assert (job.state, job.generation, job.restarts) == (JobState.TRAINING, 1, 0)
    assert job.step >= 30


@pytest.mark.slow
def test_five_black_holes_of_a_minute_restart_nothing_and_a_host_that_died_in_one_is_replaced_once(plane):
    here = plane({"seed": 4, "training": {"steps": 1000, "step_seconds": 5}})
    cluster_id = here.serving(8, is_continuous=True)
    job_id = here.training(cluster_id, replicas=5, spares=1)
    here.watch(10)
    for _ in range(5):
        assert here.cloud.strike(Strike(Blow.OUTAGE, 0, share=1.0, seconds=60)) == 8
        here.watch(90)
    job = here.job_row(job_id)
    assert (job.generation, job.restarts, job.recoveries) == (1, 0, 0)
    assert len(here.cloud.launches) == 8
    before = {process.id for process in here.members(job_id)}
    victim = here.node(here.members(job_id)[0].node_id)
    here.cloud.strike(Strike(Blow.OUTAGE, 0, share=1.0, seconds=60))
    here.cloud.kill(victim.id)
    here.watch(120)
    assert len(here.cloud.launches) == 9
    assert here.states()["node"] == ["ready"] * 8
    job = here.job_row(job_id)
    assert (job.state, job.restarts, job.recoveries) == (JobState.TRAINING, 0, 1)
    assert len(before & {process.id for process in here.members(job_id)}) == len(before) - 1
