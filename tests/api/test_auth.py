"""Credentials at rest, at start-up and in logs."""

from __future__ import annotations

import logging
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import text

from api import auth
from api.settings import Bootstrap
from models.access.states import KeyState
from models.access.table import Credential
from models.errors import Unauthenticated
from models.session import Sessions, unit_of_work
from tests.api.serving import KEY_ID, SECRET, TOKEN, settings_for
from tests.api.test_sigv4 import signed
from tests.rows import NOW


def test_secrets_are_unreadable_at_rest(server, sessions: Sessions):
    with sessions() as session:
        stored = session.execute(text("SELECT string_agg(to_json(credential)::text, '') FROM credential")).scalar()
    assert KEY_ID in stored
    assert SECRET not in stored
    assert TOKEN not in stored


def test_starting_again_stores_nothing_twice_and_takes_over_a_changed_secret(serve, database_url, sessions: Sessions):
    settings = settings_for(database_url)
    serve(settings)
    changed = replace(settings, bootstrap=Bootstrap(KEY_ID, "another secret", TOKEN))
    again = serve(changed)
    with sessions() as session:
        assert len(session.query(Credential).all()) == 2
    assert again.call("ListClusters", {}, secret="another secret").status_code == 200
    assert again.call("ListClusters", {}).status_code == 403


def test_a_revoked_key_is_an_unknown_key(server, sessions: Sessions):
    with unit_of_work(sessions) as session:
        session.query(Credential).update({"state": KeyState.REVOKED})
    answer = server.call("ListClusters", {})
    assert (answer.status_code, answer.json()["__type"]) == (403, "UnrecognizedClientException")


def test_another_master_key_opens_no_secret_and_the_operator_is_told(session, caplog: pytest.LogCaptureFixture):
    settings = settings_for("")
    auth.store_bootstrap(session, settings, now=NOW)
    stolen = replace(settings, master_key=b"x" * 32)
    request = signed(b"{}")
    header = request.headers["authorization"].replace("AKIA1", KEY_ID)
    request = replace(request, headers={**request.headers, "authorization": header})
    with pytest.raises(Exception, match="security token"):
        auth.by_signature(session, request, master_key=stolen.master_key, now=NOW)
    assert "another master key" in caplog.text


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer nobody", f"Basic {TOKEN}", TOKEN])
def test_only_a_known_bearer_token_is_taken(session, header):
    auth.store_bootstrap(session, settings_for(""), now=NOW)
    assert auth.by_token(session, f"Bearer {TOKEN}", now=NOW).account_id == "123456789012"
    assert auth.by_token(session, f"bearer {TOKEN}", now=NOW).name == "bootstrap"
    with pytest.raises(Unauthenticated):
        auth.by_token(session, header, now=NOW)


CLIENTS = frozenset({"boto3", "botocore", "urllib3"})


def test_no_secret_is_ever_logged(serve, database_url, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG):
        server = serve(settings_for(database_url))
        server.call("ListClusters", {})
        server.call("ListClusters", {}, secret="wrong secret")
        httpx.get(f"{server.url}/v1/jobs", headers={"authorization": f"Bearer {TOKEN}"}, verify=False)
    # A client that an earlier test of this process has left running may log its own signatures.
    told = "\n".join(record.getMessage() for record in caplog.records if record.name.partition(".")[0] not in CLIENTS)
    leaked = [secret for secret in (SECRET, TOKEN, "wrong secret", "Signature=") if secret in told]
    assert ("SageMaker.ListClusters" in told, leaked) == (True, [])
    assert SECRET not in repr(server.settings)
    assert TOKEN not in repr(server.settings)
