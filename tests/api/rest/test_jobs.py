"""``/v1/jobs`` over real HTTP, on a real database."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from models.clock import WallClock
from models.cluster.changes import request_deletion
from models.cluster.queries import find
from models.job import logs, reports
from models.job.changes import settle_job
from models.job.states import JobState
from models.job.table import Job, JobProcess
from models.session import Sessions, unit_of_work
from tests import rows
from tests.live import Place, ThreadedApi, Work

Call = Callable[..., httpx.Response]
FILE = {"name": "gpt", "cluster": "c1", "command": ["python", "train.py"], "working_dir": "/work", "replicas": 2}


@pytest.fixture
def call(api: ThreadedApi, bearer: str) -> Call:
    def call(method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {bearer}"} | more.pop("headers", {})
        return httpx.request(method, f"{api.url}{path}", headers=headers, timeout=20.0, **more)

    return call


@pytest.fixture
def cluster(sessions: Sessions) -> str:
    with unit_of_work(sessions) as session:
        return rows.cluster(session).name


def how_many(sessions: Sessions) -> int:
    with sessions() as session:
        return session.query(Job).count()


def test_a_job_is_submitted_and_shown(call: Call, cluster: str):
    answer = call("POST", "/v1/jobs", json=FILE)
    assert answer.status_code == 201
    job = call("GET", f"/v1/jobs/{answer.json()['JobId']}").json()
    assert (job["Name"], job["Cluster"], job["Status"], job["Step"], job["WorldSize"]) == ("gpt", "c1", "Queued", 0, 2)
    assert (job["Goodput"], job["LossLast"], job["Nodes"], job["Evictions"], job["Restarts"]) == (None, None, [], 0, 0)
    assert job["Spec"]["spares"] == 0


def test_a_job_file_in_yaml_is_taken(call: Call, cluster: str):
    text = "name: gpt\ncluster: c1\ncommand: [python, train.py]\nworking_dir: /work\nreplicas: 2\n"
    assert call("POST", "/v1/jobs", content=text, headers={"content-type": "application/yaml"}).status_code == 201


@pytest.mark.parametrize(
    "change, status, word",
    [
        ({"replcias": 2}, 422, "replicas"),
        ({"elastic": {"min": 1}}, 422, "elastic.max"),
        ({"replicas": True}, 422, "replicas"),
        ({"cluster": "c2"}, 404, "c2"),
        ({"instance_groups": ["gpus"]}, 422, "workers"),
    ],
)
def test_a_bad_job_file_is_refused_and_nothing_is_written(
    call: Call, cluster: str, sessions: Sessions, change: dict[str, Any], status: int, word: str
):
    answer = call("POST", "/v1/jobs", json=FILE | change)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert word in answer.json()["detail"]
    assert how_many(sessions) == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"{}" + b" " * 2_000_000])
def test_a_body_that_is_no_job_file_is_refused(call: Call, cluster: str, body: bytes):
    assert 400 <= call("POST", "/v1/jobs", content=body).status_code < 500


def test_callers_without_a_token_learn_nothing(api: ThreadedApi, cluster: str):
    assert httpx.post(f"{api.url}/v1/jobs", json={"replcias": 2}).status_code == 401
    assert httpx.get(f"{api.url}/v1/jobs", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_two_live_jobs_of_one_name_are_one_too_many(call: Call, cluster: str):
    call("POST", "/v1/jobs", json=FILE)
    answer = call("POST", "/v1/jobs", json=FILE)
    assert answer.status_code == 409
    assert "gpt" in answer.json()["detail"]


def test_a_repeated_submission_with_its_key_is_the_same_job(call: Call, cluster: str, sessions: Sessions):
    answers = [call("POST", "/v1/jobs", json=FILE, headers={"Idempotency-Key": "the-first"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert how_many(sessions) == 1
    other = call("POST", "/v1/jobs", json=FILE | {"replicas": 3}, headers={"Idempotency-Key": "the-first"})
    assert (other.status_code, "the-first" not in other.text) == (422, True)


def test_a_cluster_that_is_being_deleted_takes_no_jobs(call: Call, cluster: str, sessions: Sessions):
    with unit_of_work(sessions) as session:
        request_deletion(session, find(session, cluster, lock=True), now=WallClock().now())
    assert call("POST", "/v1/jobs", json=FILE).status_code == 409


def test_jobs_are_listed_newest_first_and_page_by_page(call: Call, cluster: str):
    for name in ("a", "b", "c"):
        call("POST", "/v1/jobs", json=FILE | {"name": name})
    first = call("GET", "/v1/jobs", params={"limit": 2, "cluster": "c1"}).json()
    second = call("GET", "/v1/jobs", params={"limit": 2, "cluster": "c1", "next_token": first["NextToken"]}).json()
    assert [job["Name"] for job in first["Jobs"] + second["Jobs"]] == ["c", "b", "a"]
    assert second["NextToken"] is None
    assert call("GET", "/v1/jobs", params={"next_token": "nonsense"}).status_code == 422
    assert call("GET", "/v1/jobs", params={"cluster": "c2"}).status_code == 404


@pytest.mark.parametrize(
    "cursor", ['["gpt", "job-1", false]', '["2031-05-01T12:00:00", "job-1", false]', '["2031-05-01T12:00:00", {}, true]']
)
def test_a_page_token_of_another_making_is_refused(call: Call, cursor: str):
    """Whatever it holds: a 5xx would be tried again."""
    token = base64.urlsafe_b64encode(cursor.encode()).decode()
    assert call("GET", "/v1/jobs", params={"next_token": token}).status_code == 422


def test_a_step_number_beyond_all_measure_is_refused_by_name(call: Call, cluster: str):
    job_id = call("POST", "/v1/jobs", json=FILE).json()["JobId"]
    answer = call("GET", f"/v1/jobs/{job_id}/steps", params={"after": 2**63})
    assert (answer.status_code, answer.json()["violations"][0]["member"]) == (422, "after")


@pytest.mark.parametrize(
    "text, word", [("[" * 100_000, "recursion"), ('{"replicas": 2, "replicas": 4}', "'replicas' is there twice")]
)
def test_json_that_cannot_be_meant_is_refused_in_words(call: Call, cluster: str, text: str, word: str):
    answer = call("POST", "/v1/jobs", content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert word in answer.json()["detail"]


def test_a_job_is_stopped_once(call: Call, cluster: str):
    job_id = call("POST", "/v1/jobs", json=FILE).json()["JobId"]
    for _ in range(2):
        answer = call("POST", f"/v1/jobs/{job_id}/stop")
        assert (answer.status_code, answer.json()["IsStopping"]) == (202, True)
    events = call("GET", f"/v1/jobs/{job_id}/events").json()["Events"]
    assert [event["Name"] for event in events] == ["job submitted", "stop requested"]


@pytest.mark.parametrize("path", ["", "/steps", "/events", "/logs"])
def test_a_job_that_does_not_exist_is_not_found(call: Call, path: str):
    assert call("GET", f"/v1/jobs/job-nothing{path}").status_code == 404


def test_progress_is_seen_with_a_loss_that_diverged(call: Call, work: Work, place: Place, sessions: Sessions):
    now = WallClock().now()
    with unit_of_work(sessions) as session:
        steps = [reports.Committed(0, 4.0, 0.5, now), reports.Committed(1, float("nan"), 0.5, now)]
        settle_job(session, session.get_one(Job, work.job_id), JobState.FORMING, why="nodes found", now=rows.NOW)
        reports.report_progress(session, work.job_id, 1, steps)
        logs.report_log(session, session.get_one(JobProcess, work.process_id).id, "one\ntwo\n", skipped=0, now=now)
    found = call("GET", f"/v1/jobs/{work.job_id}/steps", params={"after": -1}).json()["Steps"]
    assert [(step["Number"], step["Loss"]) for step in found] == [(0, 4.0), (1, "NaN")]
    assert len(call("GET", f"/v1/jobs/{work.job_id}/steps", params={"after": 0}).json()["Steps"]) == 1
    answer = call("GET", f"/v1/jobs/{work.job_id}")
    job = json.loads(answer.content, parse_constant=pytest.fail)
    assert (job["Step"], job["LossFirst"], job["LossLast"], job["Status"]) == (2, 4.0, "NaN", "Forming")
    assert job["Nodes"] == [place.instance_id]
    assert job["Generations"][0]["Members"][0]["ProcessId"] == work.process_id
    [log] = call("GET", f"/v1/jobs/{work.job_id}/logs", params={"lines": 1}).json()["Processes"]
    assert (log["Text"], log["End"], log["Rank"]) == ("two\n", 8, 0)
