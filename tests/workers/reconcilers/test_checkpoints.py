"""Saved steps, exports and jobs that go on from a checkpoint, with real rows and a real folder for an object store."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import pytest

from models import events
from models.checkpoint import changes, queries
from models.checkpoint.states import ExportFormat, ExportState, StepState
from models.fault.changes import request_clear, request_outage
from models.job.states import JobState
from models.job.table import Job
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.saving import Saving
from tests.workers.small_plane import SmallPlane
from workers import tending
from workers.exports import Exports
from workers.objects import connect
from workers.plane import Plane
from workers.settings import Settings

PROGRAM = """
import json, pathlib, sys
to = pathlib.Path(sys.argv[sys.argv.index('--to') + 1].removeprefix('file://'))
to.mkdir(parents=True)
(to / 'written').write_text(' '.join(sys.argv))
print(json.dumps({'bytes': 7}))
"""


@pytest.fixture
def plane(sessions, listen, tmp_path, caplog):
    url = (tmp_path / "store").as_uri()
    settings = Settings("", "", bytes(32), url, tmp_path, "")
    exports = Exports(tmp_path, {"PATH": os.environ["PATH"]}, program=(sys.executable, "-c", PROGRAM))
    yield SmallPlane(sessions, listen(NUDGE), objects=connect(settings), exports=exports, object_store_url=url)
    assert not [record.exc_text for record in caplog.records if record.name == "workers.driver"]


def test_the_store_keeps_what_its_policy_says_and_the_row_of_the_rest_is_dropped(plane):
    here = Saving(plane, keep={"last": 2, "every": 50})
    here.save_and_drain(50, 60, 70, 80)
    here.forgotten_in_memory(50, 60, 70)
    plane.run(2)
    assert here.stored() == {50, 70, 80}
    assert here.step(60).state is StepState.DROPPED
    assert here.step(80).durable_at is not None


def test_a_step_that_leaves_the_store_stays_where_the_nodes_keep_it(plane):
    here = Saving(plane, keep={"last": 1})
    here.save_and_drain(10, 20)
    plane.run(2)
    assert here.stored() == {20}
    assert (here.step(10).state, here.step(10).durable_at) == (StepState.KEPT, None)


def test_pinned_steps_and_the_newest_one_outlive_every_policy(plane):
    here = Saving(plane, keep={"last": 1, "max_age": 1.0, "max_bytes": 1})
    here.save_and_drain(10, 20, 30)
    with unit_of_work(plane.sessions) as session:
        job = session.get_one(Job, here.job_id)
        changes.request_pinned(session, job, queries.get(session, "ns", 10, lock=True), is_pinned=True, now=plane.clock.at)
    here.forgotten_in_memory(10, 20, 30)
    plane.run(1200, every=60)
    assert here.stored() == {10, 30}


def test_a_step_whose_deletion_was_asked_for_goes_from_the_store(plane):
    here = Saving(plane)
    here.save_and_drain(10, 20)
    with unit_of_work(plane.sessions) as session:
        job = session.get_one(Job, here.job_id)
        changes.request_dropped(session, job, queries.get(session, "ns", 10, lock=True), by="a test", now=plane.clock.at)
    plane.run(1)
    assert here.stored() == {20}
    assert here.step(10).state is StepState.DROPPED


def test_an_outage_of_the_store_delays_a_removal_and_loses_none(plane):
    here = Saving(plane, keep={"last": 1})
    with unit_of_work(plane.sessions) as session:
        fault = request_outage(session, target="store", seconds=None, by="a test", now=plane.clock.at)
    here.save_and_drain(10, 20)
    here.forgotten_in_memory(10)
    plane.run(40, every=5)
    assert here.stored() == {10, 20}
    with unit_of_work(plane.sessions) as session:
        request_clear(session, session.merge(fault), is_node_gone=False, now=plane.clock.at)
    plane.run(40, every=5)
    assert here.stored() == {20}


def test_a_step_that_was_committed_once_more_while_it_was_dropped_is_removed_again(plane):
    here = Saving(plane, keep={"last": 1})
    here.save_and_drain(10, 20)
    here.forgotten_in_memory(10)
    plane.run(2)
    assert here.step(10).state is StepState.DROPPED
    plane.clock.at += timedelta(seconds=1)
    here.drain(10)
    plane.run(2)
    assert here.stored() == {20}
    assert here.step(10).state is StepState.DROPPED


def test_rows_of_steps_that_are_no_more_are_forgotten_after_a_while(plane):
    here = Saving(plane, keep={"last": 1})
    here.save_and_drain(10, 20)
    here.forgotten_in_memory(10)
    plane.run(2)
    whole = Plane(plane.sessions, plane.clock, plane.driver, plane.provider)
    assert tending.forget(whole) == 0
    plane.clock.at += changes.FORGOTTEN_AFTER + timedelta(seconds=5)
    assert tending.forget(whole) == 1
    assert here.step(10) is None


def test_an_export_is_written_by_its_program_once_its_step_is_durable(plane, tmp_path):
    here = Saving(plane, keep={"last": 1})
    here.save(10)
    with unit_of_work(plane.sessions) as session:
        job, step = session.get_one(Job, here.job_id), queries.get(session, "ns", 10, lock=True)
        export_id = changes.request_export(session, job, step, ExportFormat.DCP, target=None, by="a test", now=plane.clock.at).id
    plane.run(5)
    assert exported(plane, export_id).state is ExportState.WANTED
    here.drain(10)
    here.save_and_drain(20)
    for _ in range(500):
        plane.run(2.5)
        if exported(plane, export_id).state not in (ExportState.WANTED, ExportState.RUNNING):
            break
        time.sleep(0.02)  # its program runs in real time
    done = exported(plane, export_id)
    assert (done.state, done.why) == (ExportState.DONE, None)
    assert done.url == plane.object_store_url + f"/exports/{here.job_id}/10/dcp"
    written = (tmp_path / "store" / "exports" / here.job_id / "10" / "dcp" / "written").read_text()
    assert f"--source {plane.object_store_url}/checkpoints --namespace ns --step 10 --format dcp" in written
    plane.run(1200, every=60)
    assert here.stored() == {20}


def test_an_export_of_a_step_that_is_dropped_first_fails_and_says_so(plane):
    here = Saving(plane)
    here.save(10)
    here.save_and_drain(20)
    with unit_of_work(plane.sessions) as session:
        job, step = session.get_one(Job, here.job_id), queries.get(session, "ns", 10, lock=True)
        export_id = changes.request_export(session, job, step, ExportFormat.DCP, target=None, by="a test", now=plane.clock.at).id
        changes.request_dropped(session, job, step, by="a test", now=plane.clock.at)
    plane.run(5)
    found = exported(plane, export_id)
    assert (found.state, found.why) == (ExportState.FAILED, "its step has been dropped")


def exported(plane, export_id):
    with unit_of_work(plane.sessions) as session:
        return queries.export(session, export_id)


# ------------------------------------------------------------------ jobs whose holders are all gone


def trains_again(plane, job_id, *, generation: int) -> None:
    plane.run_until(lambda: plane.job_row(job_id).generation == generation and plane.job_state(job_id) is JobState.TRAINING)


def test_a_job_goes_on_from_its_newest_complete_step_and_its_generation_says_from_which(plane):
    here = Saving(plane)
    here.save_and_drain(10)
    here.save(20)
    here.save(30, leave_out=(1,))
    here.kill_all()
    trains_again(plane, here.job_id, generation=2)
    generation = plane.generations(here.job_id)[-1]
    assert "goes on from step 20, in the memory of 2 nodes" in generation.cause
    with unit_of_work(plane.sessions) as session:
        told = [event.description for event in events.of_job(session, here.job_id) if event.name == "generation published"]
    assert "from step 20" in told[-1]


def test_when_the_nodes_that_held_it_are_gone_the_newest_durable_step_is_gone_on_from(plane):
    here = Saving(plane, count=6)
    here.save_and_drain(10)
    here.save(20)
    for member in plane.members(here.job_id):
        plane.die(plane.node(member.node_id).instance_id)
    plane.run_until(lambda: len(plane.generations(here.job_id)) > 1, seconds=300)
    assert "goes on from step 10, durable since" in plane.generations(here.job_id)[1].cause


def test_a_job_of_which_no_tier_has_a_complete_step_fails_and_says_so(plane):
    here = Saving(plane)
    here.save(30, leave_out=(1,))
    here.kill_all()
    plane.run_until(lambda: plane.job_state(here.job_id) is JobState.FAILED)
    assert "no tier has a complete checkpoint" in plane.job_row(here.job_id).why


def test_processes_are_told_the_namespace_of_their_job_file_whatever_the_user_sets(plane):
    here = Saving(plane)
    assert {told.launch.env["EVERSTEP_NAMESPACE"] for told in plane.told(here.job_id).values()} == {"ns"}


# ------------------------------------------------------------------ faults that are to be expected


def test_a_live_jobs_namespace_is_told_how_often_to_expect_a_fault_and_only_when_that_changes(plane):
    here = Saving(plane, count=4)
    whole = Plane(plane.sessions, plane.clock, plane.driver, plane.provider)
    assert tending.observe_faults(whole) == 1
    assert tending.observe_faults(whole) == 0
    quiet = rate(plane)
    for generation in (2, 3, 4):
        plane.exit(plane.members(here.job_id)[0].id, signal=9)
        trains_again(plane, here.job_id, generation=generation)
    assert tending.observe_faults(whole) == 1
    assert rate(plane) < quiet / 10


def rate(plane) -> float:
    with unit_of_work(plane.sessions) as session:
        return queries.namespace(session, "ns").mtbf_s
