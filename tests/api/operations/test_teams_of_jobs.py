"""Whose a job is: its file's team's, else its caller's, else its cluster's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from api.auth import Caller
from api.operations import jobs, spot
from api.operations.work import Work
from api.own import job_file, job_shapes
from models import events
from models.access import scope
from models.cluster.table import Cluster
from models.errors import Forbidden, Invalid, NotFound
from models.events import About, Level
from models.job import changes as job_changes
from models.job.states import ProcessState
from models.job.table import Job
from models.paging import Cut
from tests import rows

FILE = {"name": "gpt", "cluster": "c1", "command": ["python", "train.py"], "working_dir": "/work", "replicas": 1}


def submit(session: Session, *, of_file: str | None, of_caller: str | None, key: str | None = None) -> Job:
    file = job_file.read(FILE | ({"team": of_file} if of_file else {}) | ({"client_token": key} if key else {}))
    work = Work(session, datetime.now(UTC), "us-east-1", Caller("123456789012", "somebody", team=of_caller))
    wish = jobs.Wish(
        name=file.name,
        cluster=file.cluster,
        replicas=file.replicas,
        processes_per_node=1,
        spares=0,
        max_restarts=0,
        instance_groups=(),
        spec=file.spec,
        team=file.team,
        key=file.client_token,
    )
    return jobs.submit(work, wish).job


@pytest.mark.parametrize(
    "of_file, of_caller, of_cluster, whose",
    [
        (None, None, None, None),
        ("red", None, None, "red"),
        (None, "red", None, "red"),
        ("red", "red", None, "red"),
        (None, None, "red", "red"),
        (None, "red", "red", "red"),
    ],
)
def test_a_job_is_its_file_s_team_s_else_its_caller_s_else_its_cluster_s(session: Session, of_file, of_caller, of_cluster, whose):
    rows.cluster(session, team=of_cluster)
    job = submit(session, of_file=of_file, of_caller=of_caller)
    assert (job.team, job.spec["team"]) == (whose, whose)


def test_a_caller_of_a_team_submits_for_no_other(session: Session):
    rows.cluster(session)
    with pytest.raises(Forbidden, match=r"bound to team 'red'.*'blue'"):
        submit(session, of_file="blue", of_caller="red")


def test_a_team_s_cluster_runs_no_jobs_of_others(session: Session):
    rows.cluster(session, team="blue")
    with pytest.raises(Invalid, match="belongs to team 'blue'"):
        submit(session, of_file="red", of_caller=None)


def test_a_repetition_finds_the_job_that_took_its_caller_s_team(session: Session):
    rows.cluster(session)
    first = submit(session, of_file=None, of_caller="red", key="k1")
    assert submit(session, of_file=None, of_caller="red", key="k1").id == first.id


def test_a_job_tells_of_its_processes_on_nodes_that_work_for_another_team_by_now(session: Session):
    """The node is hidden from red then; that red's process was there is red's own past."""
    shared = rows.cluster(session)
    node = rows.node(session, shared)
    theirs, ours = rows.job(session, shared, "theirs", team="blue"), rows.job(session, shared, "ours", team="red")
    (before,) = job_changes.settle_processes(session, ours, [(node.id, 0)], now=rows.NOW)
    rows.reach(session, before, ProcessState.READY)
    job_changes.settle_generation(session, ours, [before], cause="start", evidence_at=None, now=rows.NOW)
    rows.reach(session, before, ProcessState.EXITED)
    told = {"about": About.JOB, "level": Level.INFO, "cluster_id": shared.id, "job_id": ours.id, "node_id": node.id}
    events.record(session, "process ended", "It has ended.", **told, now=rows.NOW)
    job_changes.settle_processes(session, theirs, [(node.id, 0)], now=rows.NOW)
    session.flush()
    scope.bind(session, "red")
    view = jobs.show(session, ours.id)
    assert job_shapes.summary(view, now=rows.NOW).nodes == (node.instance_id,)
    seen, logs = jobs.output(session, ours.id)
    assert [job_shapes.log(process, kept, seen, lines=1).instance_id for process, kept in logs] == [node.instance_id]
    assert [row.job.id for row in jobs.listing(session, jobs.JobFilter(), Cut(10)).rows] == [ours.id]
    assert "process ended" in [event.name for event in jobs.history(session, ours.id, Cut(100)).rows]


def test_a_job_is_billed_for_a_host_of_a_cluster_that_is_another_team_s_by_now(session: Session):
    shared = rows.cluster(session)
    job = rows.job(session, shared, team="red")
    (process,) = rows.processes(session, job, 1)
    shared.team = "blue"
    session.flush()
    session.expunge_all()
    scope.bind(session, "red")
    work = Work(session, rows.NOW + timedelta(hours=1), "us-east-1", Caller("123456789012", "somebody", team="red"))
    assert session.get(Cluster, shared.id) is None
    found = spot.savings(work, spot.Wanted(job_id=process.job_id))
    assert (found.nodes, found.total.unpriced_us) == (1, 3600 * 10**6)
    with pytest.raises(NotFound):
        spot.savings(work, spot.Wanted(cluster="c1"))
