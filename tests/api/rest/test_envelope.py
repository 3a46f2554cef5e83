"""What every answer of ``/v1`` carries."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI

from api.rest import errors
from api.rest.envelope import Envelope
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


def test_nobody_writes_lines_of_his_own_into_the_log(serve: Serve, database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(settings_for(database_url))
    with caplog.at_level("INFO", logger="api.rest.envelope"):
        httpx.get(f"{server.url}/v1/jobs/x%0A2031-01-01%20ERROR%20forged?a=%0Db", verify=False)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "api.rest.envelope"]
    assert "GET /v1/jobs/x%0A2031-01-01%20ERROR%20forged: 401" in line
    assert len(line.splitlines()) == 1


def test_a_crash_has_the_id_under_which_it_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    errors.install(app)
    app.add_middleware(Envelope)

    @app.get("/v1/crash")
    def crash() -> None:
        raise ZeroDivisionError

    async def crashed() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get("/v1/crash")

    with caplog.at_level("INFO", logger="api.rest.envelope"):
        answer = asyncio.run(crashed())
    assert (answer.status_code, answer.json()["code"]) == (500, "InternalFailure")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "api.rest.envelope"]
    assert line.startswith(f"{answer.headers['x-request-id']} GET /v1/crash: 500")
