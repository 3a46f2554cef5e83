"""``everstep key`` as an admin types it, against a real API on a real database."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

import boto3
import pytest
from click.testing import Result
from typer.testing import CliRunner

from everstep.cli.main import app
from tests.live import ThreadedApi

Type = Callable[..., Result]


@pytest.fixture
def type_(api: ThreadedApi, bearer: str, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Types a command and returns what came of it."""
    monkeypatch.setenv("EVERSTEP_URL", api.url)
    monkeypatch.setenv("EVERSTEP_TOKEN", bearer)
    return lambda *words: CliRunner().invoke(app, ["key", *(str(word) for word in words)])


def one_document(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def exports(result: Result) -> dict[str, str]:
    assert result.exit_code == 0, result.output
    pairs = [line.removeprefix("export ").partition("=") for line in result.stdout.splitlines()]
    return {name: shlex.split(value)[0] for name, _, value in pairs}


def test_the_lines_that_create_prints_can_be_used_at_once(type_: Type, api: ThreadedApi, monkeypatch: pytest.MonkeyPatch):
    for name, value in exports(type_("create", "ci", "--role", "viewer")).items():
        monkeypatch.setenv(name, value)
    client = boto3.session.Session().client("sagemaker")
    assert client.list_clusters()["ClusterSummaries"] == []
    client.close()


def test_a_token_is_for_this_program(type_: Type, monkeypatch: pytest.MonkeyPatch):
    lines = exports(type_("create", "viewer", "--role", "viewer", "--kind", "token"))
    assert set(lines) == {"EVERSTEP_URL", "EVERSTEP_TOKEN"}
    monkeypatch.setenv("EVERSTEP_TOKEN", lines["EVERSTEP_TOKEN"])
    assert CliRunner().invoke(app, ["job", "list"]).exit_code == 0
    refused = type_("create", "another")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "is not authorized to perform: everstep:CreateKey" in refused.stderr


def test_keys_are_listed_rotated_and_revoked(type_: Type):
    made = one_document(type_("create", "ci", "--team", "red", "--json"))
    assert (made["role"], made["team"], made["kind"]) == ("Operator", "red", "AccessKey")
    rotated = one_document(type_("rotate", made["key_id"], "--overlap", "60", "--json"))
    assert rotated["team"] == "red"
    assert "AWS_SECRET_ACCESS_KEY" in exports(type_("rotate", rotated["key_id"]))
    assert "is revoked" in type_("revoke", made["key_id"]).stdout
    status = {key["key_id"]: key["status"] for key in one_document(type_("list", "--json"))["keys"]}
    assert (status[made["key_id"]], status[rotated["key_id"]]) == ("Revoked", "Revoked")
    listed = type_("list", "--active").stdout
    assert "red" in listed
    assert made["key_id"] not in listed
    assert made["secret"] not in type_("list").stdout


@pytest.mark.parametrize("verb", ["rotate", "revoke"])
@pytest.mark.parametrize("key", ["AKIANOBODY", "../jobs"])
def test_a_key_that_does_not_exist_is_named(type_: Type, verb: str, key: str):
    result = type_(verb, key)
    assert result.exit_code == 2
    assert key in result.stderr
    assert result.stdout == ""
