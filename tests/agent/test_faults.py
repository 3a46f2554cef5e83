"""Faults that are asked for through the API strike real processes of a real agent, once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.clock import WallClock
from models.job.changes import settle_generation
from models.job.states import ProcessState
from models.job.table import Job, JobProcess
from models.node import queries as nodes
from models.node.changes import settle_node, settle_unwanted
from models.node.states import NodeState
from models.session import Sessions, unit_of_work
from tests.agent.test_loop_against_the_control_plane import SLEEP, assign, is_alive, process_of, until
from tests.live import Host, Place, ThreadedApi, Work, wait_for

Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(api: ThreadedApi, bearer: str) -> Call:
    def call(method: str, path: str, **more: Any) -> dict[str, Any]:
        answer = httpx.request(method, f"{api.url}{path}", headers={"authorization": f"Bearer {bearer}"}, verify=False, **more)
        return answer.json() | {"status_code": answer.status_code}

    return call


@pytest.fixture
def pid(hosted: Host, place: Place, work: Work, sessions: Sessions, tmp_path: Path) -> int:
    """Of rank 0, which sleeps."""
    assign(sessions, place, work, SLEEP, tmp_path)
    hosted.start()
    return until(sessions, work, ProcessState.STARTED).pid


def status_of(call: Call, fault_id: str) -> str:
    return next(fault["Status"] for fault in call("GET", "/v1/faults")["Faults"] if fault["FaultId"] == fault_id)


def run_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_rank_is_killed_and_the_job_s_history_says_who_asked(call: Call, pid: int, work: Work, sessions: Sessions):
    asked = call("POST", "/v1/faults", json={"Kind": "kill-rank", "Target": f"{work.job_id}/0"})
    assert (asked["status_code"], asked["Status"], asked["RequestedBy"] != "") == (201, "Wanted", True)
    wait_for(lambda: not is_alive(pid))
    assert until(sessions, work, ProcessState.EXITED).signal == signal.SIGKILL
    wait_for(lambda: status_of(call, asked["FaultId"]) == "Struck")
    assert call("DELETE", f"/v1/faults/{asked['FaultId']}")["Status"] == "Struck", "what has struck stays so"
    names = [event["Name"] for event in call("GET", f"/v1/jobs/{work.job_id}/events")["Events"]]
    assert [name for name in names if name.startswith("fault")] == ["fault requested", "fault struck"]


def test_a_rank_hangs_until_its_time_is_over(call: Call, pid: int, work: Work):
    fault = call("POST", "/v1/faults", json={"Kind": "hang-rank", "Target": f"{work.job_id}/0", "Seconds": 0.5})["FaultId"]
    wait_for(lambda: run_state(pid) == "T")
    wait_for(lambda: status_of(call, fault) == "Ended")
    assert run_state(pid) == "S"


def test_a_rank_hangs_until_it_is_cleared_even_if_its_agent_died_meanwhile(call: Call, pid: int, work: Work, hosted: Host):
    fault = call("POST", "/v1/faults", json={"Kind": "hang-rank", "Target": f"{work.job_id}/0"})["FaultId"]
    wait_for(lambda: status_of(call, fault) == "Holding")
    assert [found["FaultId"] for found in call("GET", f"/v1/faults?live=true&job_id={work.job_id}")["Faults"]] == [fault]
    hosted.stop(signal.SIGKILL)
    assert call("DELETE", f"/v1/faults/{fault}")["Status"] == "Ending"
    assert run_state(pid) == "T"
    hosted.start()
    wait_for(lambda: status_of(call, fault) == "Ended", 20.0)
    assert run_state(pid) == "S"
    assert call("GET", "/v1/faults?live=true")["Faults"] == []


def test_a_fault_strikes_once_however_often_its_agent_is_told(call: Call, pid: int, work: Work, hosted: Host, sessions: Sessions):
    fault = call("POST", "/v1/faults", json={"Kind": "kill-rank", "Target": f"{work.job_id}/0"})["FaultId"]
    wait_for(lambda: status_of(call, fault) == "Struck")
    until(sessions, work, ProcessState.EXITED)
    hosted.stop(signal.SIGKILL)
    claims = hosted.state / "faults"
    before = [path.read_bytes() for path in claims.iterdir()]
    hosted.start()
    wait_for(lambda: "registered as" in hosted.log.read_text().rpartition("registered as")[0], 20.0)
    assert [path.read_bytes() for path in claims.iterdir()] == before


def test_a_node_is_killed_with_everything_on_it(call: Call, pid: int, work: Work, place: Place, hosted: Host, sessions: Sessions):
    fault = call("POST", "/v1/faults", json={"Kind": "kill-node", "Target": place.instance_id})["FaultId"]
    assert hosted.process is not None
    assert hosted.process.wait(10.0) == -signal.SIGKILL
    wait_for(lambda: not is_alive(pid))
    assert status_of(call, fault) == "Struck", "it said so before it went"


REFUSED = [
    ("xid", "i-nothing", 404, "i-nothing"),
    ("partition", "{job}/7", 422, "rank 7"),
    ("kil-rank", "i-1", 422, "hang-rank"),
    ("kill-rank", "job-nothing/0", 404, "job-nothing"),
    ("kill-rank", "nonsense", 422, "JOB_ID/RANK"),
    ("kill-rank", "{job}/7", 422, "rank 7"),
    ("kill-node", "i-nothing", 404, "i-nothing"),
]


def test_what_cannot_be_struck_is_refused_with_what_to_do(call: Call, work: Work):
    for kind, target, status, word in REFUSED:
        answer = call("POST", "/v1/faults", json={"Kind": kind, "Target": target.format(job=work.job_id)})
        assert (answer["status_code"], word in answer["detail"]) == (status, True), (kind, target)
    assert call("GET", "/v1/faults")["Faults"] == []


def test_a_fault_of_a_node_that_is_gone_is_no_longer_awaited(call: Call, work: Work, place: Place, sessions: Sessions):
    with unit_of_work(sessions) as session:
        session.get_one(JobProcess, work.process_id).pid = 1
        settle_generation(
            session,
            session.get_one(Job, work.job_id),
            [session.get_one(JobProcess, work.process_id)],
            cause="test",
            evidence_at=None,
            now=WallClock().now(),
        )
    fault = call("POST", "/v1/faults", json={"Kind": "hang-rank", "Target": f"{work.job_id}/0"})["FaultId"]
    assert process_of(sessions, work).node_id == place.node_id
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id, lock=True)
        settle_unwanted(session, node, why="test", now=WallClock().now())
        settle_node(session, node, NodeState.RELEASING, why="test", now=WallClock().now())
        settle_node(session, node, NodeState.GONE, why="test", now=WallClock().now())
    assert status_of(call, fault) == "Missed"
    assert call("DELETE", f"/v1/faults/{fault}")["Status"] == "Ended"
