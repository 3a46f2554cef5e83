"""Text that Postgres cannot hold is refused by name at every operation of our own: it would be the database's error, and a 5xx is tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.live import ThreadedApi

BAD = "a\x00b"
JOB = {"name": "x", "cluster": "c1", "command": ["a"], "working_dir": "/", "replicas": 1}
Call = Callable[..., httpx.Response]


@pytest.fixture
def call(api: ThreadedApi, bearer: str) -> Call:
    def call(method: str, path: str, more_headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        headers = {**(more_headers or {}), "authorization": f"Bearer {bearer}"}
        return httpx.request(method, f"{api.url}{path}", headers=headers, verify=False, **more)

    return call


def test_no_query_and_no_body_with_such_text_is_taken(call: Call) -> None:
    queries = (
        ("GET", "/v1/audit-events?caller=a%00b"),
        ("GET", "/v1/audit-events?operation=a%00b"),
        ("GET", "/v1/goodput?job_id=a%00b"),
        ("GET", "/v1/goodput?cluster=a%00b"),
        ("GET", "/v1/events?job_id=a%00b"),
        ("GET", "/v1/jobs/a%00b"),
        ("POST", "/v1/keys/a%00b/revoke"),
        ("DELETE", "/v1/faults/a%00b"),
    )
    bodies = (
        ("/v1/jobs", JOB | {"client_token": BAD}),
        ("/v1/jobs", JOB | {"name": BAD}),
        ("/v1/jobs", JOB | {"command": [BAD]}),
        ("/v1/jobs", JOB | {"env": {"A": BAD}}),
        ("/v1/faults", {"Kind": "kill-node", "Target": BAD}),
        ("/v1/faults", {"Kind": "kill-node", "Target": "i-1", "ClientToken": BAD}),
        ("/v1/keys", {"Name": BAD}),
        ("/v1/alarms", {"AlarmName": "a", "State": "OK", "Reason": BAD}),
        ("/v1/image-releases", {"Version": "1.2.3", "ImageId": "ami-00000000000000001", "Note": BAD}),
    )
    answers = {(method, path): call(method, path) for method, path in queries}
    answers |= {(path, str(body)): call("POST", path, json=body) for path, body in bodies}
    assert {key: answer.status_code for key, answer in answers.items() if answer.status_code != 422} == {}


def test_an_answer_tells_the_first_thousand_mistakes_and_counts_the_rest(call: Call) -> None:
    answer = call("POST", "/v1/alarms", json={"AlarmName": "a", "State": "OK"} | {f"x{number}": 1 for number in range(3_000)})
    assert (answer.status_code, len(answer.json()["violations"])) == (422, 1_000)
    assert answer.json()["detail"].endswith("; and 2000 more")


DIGITS = "9" * 5000
"""Python reads no number of so many digits, and says so with a ValueError."""


def test_a_number_that_is_too_long_to_be_read_is_a_refusal_wherever_it_comes(call: Call) -> None:
    yaml = {"content-type": "application/yaml"}
    answers = {
        "last-event-id": call("GET", "/v1/events?follow=true", more_headers={"last-event-id": f"{DIGITS}-1"}),
        "its second part": call("GET", "/v1/events?follow=true", more_headers={"last-event-id": f"1-{DIGITS}"}),
        "query": call("GET", f"/v1/clusters?MaxResults={DIGITS}"),
        "own query": call("GET", f"/v1/events?max_results={DIGITS}"),
        "body": call("POST", "/v1/clusters", content=f'{{"ClusterName": {DIGITS}}}'),
        "own body": call("POST", "/v1/faults", content=f'{{"Seconds": {DIGITS}}}'),
        "name of a member": call("POST", "/v1/clusters", json={f"x.{DIGITS}.member": 1}),
        "YAML": call("POST", "/v1/faults", content=f"seconds: {DIGITS}", more_headers=yaml),
        "rank": call("POST", "/v1/faults", json={"Kind": "kill-rank", "Target": f"job/{DIGITS[:200]}"}),
    }
    assert {where: answer.status_code for where, answer in answers.items() if answer.status_code not in {400, 404, 422}} == {}


@pytest.mark.parametrize(
    "value", ["!!timestamp 2026-01-01", "!!timestamp 2026-01-01T00:00:00Z", "!!binary aGFsbG8=", "!!set {a, b}", "!!omap [a: b]"]
)
def test_yaml_that_json_has_no_word_for_is_refused(call: Call, value: str) -> None:
    yaml = {"content-type": "application/yaml"}
    answer = call("POST", "/v1/alarms", content=f"alarm_name: {value}\nstate: OK\n", more_headers=yaml)
    assert (answer.status_code, answer.json()["code"]) == (422, "Invalid")
    assert "line 1" in answer.json()["detail"]
