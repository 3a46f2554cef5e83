"""A job with a past, and clients of both doors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from botocore.config import Config

import everstep
from models.clock import WallClock
from models.cluster.table import Cluster
from models.job import logs, reports
from models.job.changes import settle_generation, settle_job, settle_processes
from models.job.states import JobState
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api import contract
from tests.api.serving import KEY_ID, SECRET, TOKEN, Server

Rest = Callable[..., httpx.Response]


@pytest.fixture
def ours(server: Server) -> Iterator[Any]:
    """A client whose every answer is held against the service model. One attempt, so that a wrong 5xx fails the test."""
    config = Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = everstep.client("everstep", endpoint_url=server.url, config=config, **keys)
    client.meta.events.register_first("after-call.everstep", contract.check_answer)
    yield client
    client.close()


@pytest.fixture
def rest(server: Server) -> Iterator[Rest]:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}, verify=False, timeout=20.0) as http:
        yield http.request


@pytest.fixture
def cluster(sessions: Sessions) -> str:
    with unit_of_work(sessions) as session:
        return rows.cluster(session, is_continuous=True).name


@pytest.fixture
def job(sessions: Sessions, cluster: str) -> str:
    """A job that trains on one node, has committed two steps, the second with a loss that diverged, and has written two lines."""
    now = WallClock().now()
    with unit_of_work(sessions) as session:
        of = session.query(Cluster).filter_by(name=cluster).one()
        made = rows.job(session, of, replicas=1, spec={"name": "j1", "command": ["python", "train.py"], "env": {"LR": "0.1"}})
        [process] = settle_processes(session, made, [(rows.node(session, of).id, 0)], now=now)
        settle_generation(session, made, [process], cause="test", evidence_at=None, now=now)
        settle_job(session, made, JobState.FORMING, why="nodes found", now=rows.NOW)
        steps = [reports.Committed(0, 4.0, 0.5, now), reports.Committed(1, float("nan"), 0.5, now)]
        reports.report_progress(session, made.id, 1, steps)
        logs.report_log(session, process.id, "one\ntwo\n", skipped=0, now=now)
        return made.id
