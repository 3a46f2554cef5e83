"""Real workers, beat and relay as they are run, on a real broker; a provider without room, so that no host is launched."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from models.clock import WallClock
from models.cluster.changes import ClusterSpec, request_cluster
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.pulse import last_pulses
from models.session import unit_of_work
from tests import rows
from tests.patience import PATIENCE
from workers.relay import send
from workers.settings import FAST, SLOW

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(database_url, broker_url, tmp_path):
    """Runs a module of ours with the settings of the test; ended with the test."""
    environ = {
        **os.environ,
        "EVERSTEP_DATABASE_URL": database_url,
        "EVERSTEP_BROKER_URL": broker_url,
        "EVERSTEP_MASTER_KEY": base64.b64encode(bytes(32)).decode(),
        "EVERSTEP_OBJECT_STORE_URL": (tmp_path / "store").as_uri(),
        "EVERSTEP_HOME_DIR": str(tmp_path),
        "EVERSTEP_API_URL": "http://127.0.0.1:9",
        "EVERSTEP_LOCAL_CAPACITY": "0",
    }

    @contextmanager
    def program(*arguments: str):
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", *arguments], env=environ, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)

    with ExitStack() as running:
        yield lambda *arguments: running.enter_context(program(*arguments))


def celery(program, *arguments: str):
    return program("celery", "-A", "workers.app", *arguments)


def worker(program, queues: str):
    return celery(program, "worker", "-Q", queues, "-c", "2", "-n", f"{queues}@%h", "--without-mingle", "--without-gossip")


def until(claim, what: str, seconds: float = 40.0):
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := claim()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds * PATIENCE} s"
        time.sleep(0.01)
    return found


def request(sessions, name: str) -> str:
    with unit_of_work(sessions) as session:
        spec = ClusterSpec(name, is_continuous=False, settings={}, groups=(rows.group_spec(count=1),))
        return request_cluster(session, spec, region="us-east-1", account_id="123456789012", now=WallClock().now()).id


def state_of(sessions, cluster_id: str) -> ClusterState:
    with unit_of_work(sessions) as session:
        return session.get_one(Cluster, cluster_id).state


def test_work_flows_through_both_lanes_and_does_so_without_the_relay_too(program, sessions, tmp_path):
    """A cluster for which there is no room passes cluster, host and node reconcilers on its way to Failed.

    Without the relay each of them waits for a sweep, so there the first turn of the story is enough.
    """
    worker(program, f"{FAST},{SLOW}")
    relay = program("workers.relay")
    celery(program, "beat", "--schedule", str(tmp_path / "schedule"), "--pidfile=")

    def pulses():
        with unit_of_work(sessions) as session:
            return set(last_pulses(session)) == {FAST, SLOW}

    until(pulses, "a pulse of both lanes")
    first = request(sessions, "c1")
    until(lambda: state_of(sessions, first) is ClusterState.FAILED, "an answer with the relay")
    relay.kill()
    second = request(sessions, "c2")
    until(lambda: state_of(sessions, second) is not ClusterState.CREATING, "an answer without the relay")


def test_a_burst_of_notifications_is_one_message_a_row_and_jobs_come_first():
    sent = []
    send(["node:n", "job:a", "cluster:c", "job:a", "job:b", "node:n"], lambda kind, row_id: sent.append((kind, row_id)))
    assert sent == [("job", "a"), ("job", "b"), ("node", "n"), ("cluster", "c")]


@pytest.mark.parametrize("payload", ["", "job", "job:", "shoe:1", ":x"])
def test_a_notification_that_is_none_of_ours_is_ignored(payload):
    send([payload], lambda *_: pytest.fail("sent"))
