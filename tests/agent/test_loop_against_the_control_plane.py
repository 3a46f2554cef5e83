"""A real agent process, a real API, real Postgres: what happens when either side dies, and when they cannot talk."""

from __future__ import annotations

import json
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from models.clock import WallClock
from models.directive.changes import settle_assignment, settle_withdrawn
from models.directive.states import DirectiveState
from models.job import logs as job_logs
from models.job.states import ProcessState
from models.job.table import Job, JobProcess
from models.node import queries as nodes
from models.node.changes import settle_node, settle_unwanted
from models.node.states import NodeState
from models.node.table import Node
from models.session import Sessions, unit_of_work
from tests.live import ApiProcess, Host, Place, Work, host, wait_for
from tests.postgres import plain

Look = Callable[[str], Node]


def assign(sessions: Sessions, place: Place, work: Work, command: list[str], folder: Path) -> None:
    """Tells the node to run one process of the job."""
    launch = {"command": command, "working_dir": str(folder), "env": {}, "seed": 0}
    assignment = {"job": work.job_id, "launch": launch, "processes": [{"id": work.process_id, "local_rank": 0}], "grace_s": 2.0}
    with unit_of_work(sessions) as session:
        settle_assignment(session, place.node_id, work.job_id, assignment, now=WallClock().now())


def process_of(sessions: Sessions, work: Work) -> JobProcess:
    with sessions() as session:
        return session.get_one(JobProcess, work.process_id)


def is_alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def until(sessions: Sessions, work: Work, state: ProcessState, within_s: float = 20.0) -> JobProcess:
    wait_for(lambda: process_of(sessions, work).state is state, within_s)
    return process_of(sessions, work)


SLEEP = ["/bin/sh", "-c", "echo asleep; sleep 60"]


def test_an_agent_registers_beats_and_keeps_its_token_for_itself(hosted: Host, place: Place, look: Look):
    hosted.start()
    wait_for(lambda: look(place.node_id).beat_sequence > 0, 20.0)
    wait_for(lambda: look(place.node_id).lifecycle_done)
    assert look(place.node_id).state is NodeState.CHECKING
    kept = hosted.state / "identity.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    token = json.loads(kept.read_text())["node_token"]
    assert token not in hosted.log.read_text()


def test_a_killed_agent_is_noticed_within_a_second_and_its_processes_live_on(
    hosted: Host, place: Place, work: Work, sessions: Sessions, look: Look, tmp_path: Path
):
    assign(sessions, place, work, SLEEP, tmp_path)
    hosted.start()
    pid = until(sessions, work, ProcessState.STARTED).pid
    wait_for(lambda: look(place.node_id).facts.get("stream"))
    began = time.monotonic()
    hosted.stop(signal.SIGKILL)
    wait_for(lambda: look(place.node_id).stream_lost_at, 5.0)
    noticed = time.monotonic() - began
    print(f"noticed after {noticed * 1e3:.0f} ms")
    assert noticed < 1.0
    assert is_alive(pid)
    hosted.start()
    wait_for(lambda: look(place.node_id).stream_lost_at is None, 20.0)
    assert is_alive(pid)
    assert process_of(sessions, work).state is ProcessState.STARTED


def test_reports_survive_an_outage_of_the_control_plane_and_arrive_once_and_in_order(
    api_process: ApiProcess, place: Place, work: Work, sessions: Sessions, tmp_path: Path, look: Look
):
    with host(api_process.url, place, tmp_path / "host") as hosted:
        assign(sessions, place, work, [sys.executable, "-c", "import time; time.sleep(3); raise SystemExit(7)"], tmp_path)
        hosted.start()
        pid = until(sessions, work, ProcessState.STARTED).pid
        api_process.stop(signal.SIGKILL)
        wait_for(lambda: not is_alive(pid), 20.0)
        assert process_of(sessions, work).state is ProcessState.STARTED
        before = look(place.node_id).report_sequence
        api_process.start()
        process = until(sessions, work, ProcessState.EXITED)
        assert process.exit_code == 7
        assert look(place.node_id).report_sequence > before


def test_what_a_process_writes_can_be_read_at_the_control_plane(
    hosted: Host, place: Place, work: Work, sessions: Sessions, tmp_path: Path
):
    assign(sessions, place, work, ["/bin/sh", "-c", "echo first; sleep 2; echo second; sleep 60"], tmp_path)
    hosted.start()

    def text() -> str:
        with sessions() as session:
            return "".join(log.text for _, log in job_logs.of_job(session, work.job_id) if log)

    wait_for(lambda: text() == "first\n", 20.0)
    wait_for(lambda: text() == "first\nsecond\n", 20.0)


def test_a_job_that_is_not_assigned_any_more_is_ended_when_the_agent_comes_back(
    hosted: Host, place: Place, work: Work, sessions: Sessions, tmp_path: Path
):
    assign(sessions, place, work, SLEEP, tmp_path)
    hosted.start()
    pid = until(sessions, work, ProcessState.STARTED).pid
    hosted.stop(signal.SIGKILL)
    with unit_of_work(sessions) as session:
        settle_withdrawn(session, place.node_id, session.get_one(Job, work.job_id).id, DirectiveState.DONE, now=WallClock().now())
    hosted.start()
    wait_for(lambda: not is_alive(pid), 20.0)


def test_an_agent_that_is_asked_to_end_ends_its_processes_and_tells_so(
    hosted: Host, place: Place, work: Work, sessions: Sessions, tmp_path: Path
):
    assign(sessions, place, work, SLEEP, tmp_path)
    hosted.start()
    pid = until(sessions, work, ProcessState.STARTED).pid
    assert hosted.stop(signal.SIGTERM) == 0
    assert not is_alive(pid)
    assert process_of(sessions, work).signal in (signal.SIGTERM, signal.SIGKILL)


def test_the_agent_of_a_node_that_is_gone_ends_itself_and_its_processes_for_good(
    hosted: Host, place: Place, work: Work, sessions: Sessions, tmp_path: Path
):
    assign(sessions, place, work, SLEEP, tmp_path)
    hosted.start()
    pid = until(sessions, work, ProcessState.STARTED).pid
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id, lock=True)
        settle_unwanted(session, node, why="test", now=WallClock().now())
        settle_node(session, node, NodeState.RELEASING, why="test", now=WallClock().now())
        settle_node(session, node, NodeState.GONE, why="test", now=WallClock().now())
    hosted.process.wait(40.0)
    assert hosted.process.returncode == 64
    assert not is_alive(pid)


def test_an_agent_starts_before_its_control_plane_does(api_process: ApiProcess, place: Place, look: Look, tmp_path: Path):
    api_process.stop(signal.SIGKILL)
    with host(api_process.url, place, tmp_path / "host") as hosted:
        hosted.start()
        wait_for(lambda: "cannot register" in hosted.log.read_text(), 20.0)
        api_process.start()
        wait_for(lambda: look(place.node_id).beat_sequence > 0, 20.0)


def test_a_database_that_drops_every_connection_costs_no_report_and_no_node(
    hosted: Host, place: Place, work: Work, sessions: Sessions, tmp_path: Path, look: Look, database_url: str
):
    assign(sessions, place, work, [sys.executable, "-c", "import time; time.sleep(2); raise SystemExit(7)"], tmp_path)
    hosted.start()
    until(sessions, work, ProcessState.STARTED)
    drop = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(plain(database_url), autocommit=True) as server:
        for _ in range(40):
            server.execute(drop)
            time.sleep(0.05)
    assert until(sessions, work, ProcessState.EXITED).exit_code == 7
    assert look(place.node_id).stream_lost_at is None
