"""What every answer of ``/v1`` carries."""

from __future__ import annotations

from dataclasses import replace

import httpx

from tests.api.conftest import Serve
from tests.api.serving import TOKEN, settings_for


def test_answers_tell_how_many_requests_are_left_where_they_are_counted(serve: Serve, database_url: str) -> None:
    server = serve(replace(settings_for(database_url), rate_limit=100.0))
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}, verify=False) as client:
        answers = [client.get(path) for path in ("/v1/jobs", "/v1/clusters", "/v1/clusters/nobody")]
    assert [int(answer.headers["ratelimit-remaining"]) in range(190, 201) for answer in answers] == [True] * 3
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3
    stranger = httpx.get(f"{server.url}/v1/jobs", verify=False)
    assert (stranger.status_code, "ratelimit-remaining" in stranger.headers) == (401, False)
    assert stranger.headers["x-request-id"]
    assert "x-request-id" not in httpx.get(f"{server.url}/healthz", verify=False).headers
