"""Whose a job is: its file's team's, else its caller's, else its cluster's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy.orm import Session

from api.auth import Caller
from api.operations import jobs
from api.operations.work import Work
from api.own import job_file
from models.errors import Forbidden, Invalid
from models.job.table import Job
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
    return jobs.submit(work, wish)


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
