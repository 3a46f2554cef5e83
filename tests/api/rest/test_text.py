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
    def call(method: str, path: str, **more: Any) -> httpx.Response:
        return httpx.request(method, f"{api.url}{path}", headers={"authorization": f"Bearer {bearer}"}, verify=False, **more)

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
