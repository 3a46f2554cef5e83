"""What a REST handler may ask for, in an application as small as can be."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from sqlalchemy import text
from starlette.requests import Request

from api import auth
from api.deps import MOST_BYTES, CallerDep, NowDep, Services, SessionDep, authenticated
from api.rest import errors
from models.clock import WallClock
from models.errors import AlreadyExists
from models.session import Sessions, unit_of_work
from tests.api.serving import KEY_ID, SECRET, TOKEN, settings_for


async def parsed(request: Request) -> str:
    return b"".join([chunk async for chunk in request.stream()]).decode()


@pytest.fixture
def app(sessions: Sessions) -> FastAPI:
    app = FastAPI()
    app.state.services = Services(settings_for(""), sessions, WallClock())
    errors.install(app)
    with unit_of_work(sessions) as session:
        auth.store_bootstrap(session, app.state.services.settings, now=app.state.services.clock.now())
        session.execute(text("CREATE TABLE written (word text)"))

    @app.get("/who")
    def who(caller: CallerDep, now: NowDep) -> dict[str, str]:
        assert now.tzinfo is not None
        return {"name": caller.name, "key": caller.key_id[:4], "account": caller.account_id}

    @app.post("/write/{word}")
    def write(word: str, session: SessionDep, _caller: CallerDep, fails: bool = False) -> dict[str, str]:
        session.execute(text("INSERT INTO written VALUES (:word)"), {"word": word})
        if fails:
            raise AlreadyExists(kind="Word", name=word)
        return {"word": word}

    router = APIRouter()

    @router.post("/echo")
    def echo(text: Annotated[str, Depends(parsed)], _caller: CallerDep) -> dict[str, str]:
        return {"text": text}

    app.include_router(router, dependencies=[Depends(authenticated)])

    @app.get("/crash")
    def crash() -> None:
        message = "the secret of the house"
        raise RuntimeError(message)

    @app.get("/teapot")
    def teapot() -> None:
        raise HTTPException(418, "short and stout")

    return app


def call(app: FastAPI, method: str, url: str, headers: dict[str, str] | None = None, body: bytes = b"") -> httpx.Response:
    async def sent() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False)) as client:
            return await client.request(method, f"http://everstep{url}", headers=headers, content=body)

    return asyncio.run(sent())


def signed(method: str, url: str, body: bytes = b"") -> dict[str, str]:
    request = AWSRequest(method, f"http://everstep{url}", data=body, headers={"host": "everstep"})
    SigV4Auth(Credentials(KEY_ID, SECRET), "everstep", "us-east-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


BEARER = {"authorization": f"Bearer {TOKEN}"}


def words(sessions: Sessions) -> list[Any]:
    with sessions() as session:
        return list(session.execute(text("SELECT word FROM written")).scalars())


def test_a_bearer_token_and_an_aws_signature_are_both_taken(app):
    assert call(app, "GET", "/who", BEARER).json() == {"name": "bootstrap", "key": "tok-", "account": "123456789012"}
    assert call(app, "GET", "/who?b=2&a=1", signed("GET", "/who?b=2&a=1")).json()["key"] == KEY_ID[:4]
    assert call(app, "POST", "/write/signed", signed("POST", "/write/signed", b"body"), b"body").status_code == 200


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer nobody"}, {"authorization": "AWS4-HMAC-SHA256 x"}])
def test_whoever_is_nobody_gets_a_problem_document(app, headers):
    answer = call(app, "GET", "/who", headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "code", "detail"} <= set(answer.json())


def test_what_was_answered_is_committed_and_what_was_refused_is_not(app, sessions: Sessions):
    assert call(app, "POST", "/write/kept", BEARER).json() == {"word": "kept"}
    refused = call(app, "POST", "/write/dropped?fails=true", BEARER)
    assert (refused.status_code, refused.json()["code"]) == (409, "AlreadyExists")
    assert words(sessions) == ["kept"]


def test_a_handler_reads_the_same_body_that_was_signed(app):
    assert call(app, "POST", "/echo", signed("POST", "/echo", b"body"), b"body").json() == {"text": "body"}
    assert call(app, "POST", "/echo", BEARER, b"body").json() == {"text": "body"}
    assert call(app, "POST", "/echo", signed("POST", "/echo", b"body"), b"another").status_code == 401


def test_a_body_beyond_all_measure_is_refused_by_its_length(app):
    assert call(app, "POST", "/echo", BEARER, b" " * (MOST_BYTES + 1)).status_code == 413


def test_an_unauthenticated_write_writes_nothing(app, sessions: Sessions):
    assert call(app, "POST", "/write/x").status_code == 401
    assert words(sessions) == []


def test_every_other_error_is_a_problem_document_too(app):
    wrong = call(app, "POST", "/write/x?fails=perhaps", BEARER)
    assert wrong.status_code == 422
    assert wrong.json()["violations"][0]["member"] == "fails"
    assert call(app, "GET", "/teapot").json()["detail"] == "short and stout"
    assert call(app, "GET", "/nowhere").json()["status"] == 404
    crashed = call(app, "GET", "/crash")
    assert (crashed.status_code, crashed.json()["code"]) == (500, "InternalFailure")
    assert "secret of the house" not in crashed.text
