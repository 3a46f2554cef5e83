"""The API with other versions of botocore than the pinned one: a look at the oldest. `make test-botocore` runs the whole wire suite so."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore
import pytest

from models.session import Sessions
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.serving import KEY_ID, SECRET, Server, settings_for
from tests.api.test_process import api_process, until_alive
from tests.clients import botocores

SCRIPT = Path(__file__).with_name("scripts") / "first_steps.py"


@pytest.fixture(scope="module")
def oldest() -> Path:
    folder = botocores.folder_of("oldest")
    if botocores.version_in(folder) != botocores.OLDEST:
        pytest.skip(f"botocore {botocores.OLDEST} is not in {folder.name}/: `make test` puts it there")
    return folder


def goes_well(url: str, name: str, folder: Path | None, sessions: Sessions) -> None:
    """A client with the botocore of that folder, or with the pinned one, takes a cluster through its life."""
    version = _pinned() if folder is None else botocores.version_in(folder)
    assert _step(url, "create", name, folder) == {
        "botocore": version,
        "is_one_arn": True,
        "described": [name, "Creating", 1],
        "listed": [name],
        "deleted_too_early": "ConflictException",
    }
    as_it_comes_into_service(sessions, name)
    assert _step(url, "delete", name, folder) == {"botocore": version, "status": "Deleting", "missing": "ResourceNotFound"}


def test_these_tests_run_with_the_version_that_was_asked_for():
    """Otherwise a run with the oldest could be one with the pinned version, and prove nothing."""
    asked_for = os.environ.get(botocores.ASKED_FOR) or _pinned()
    assert botocore.__version__ == importlib.metadata.version("botocore") == asked_for


def test_a_client_of_the_oldest_version_works_with_a_server_of_the_pinned_one(server: Server, sessions: Sessions, oldest: Path):
    goes_well(server.url, "old-client", oldest, sessions)


def test_a_server_with_the_oldest_version_serves_clients_of_any(
    oldest: Path, database_url: str, sessions: Sessions, tmp_path: Path
):
    with api_process(database_url, tmp_path / "api.log", PYTHONPATH=str(oldest)) as (process, url):
        until_alive(url, process)
        goes_well(url, "old-client", oldest, sessions)
        goes_well(url, "new-client", None, sessions)
        answer = Server(url, settings_for(database_url)).call("ListClusterOperations", {"ClusterName": "old-client"})
    assert (answer.status_code, answer.json()["__type"]) == (400, "UnknownOperationException")


def _step(url: str, step: str, name: str, folder: Path | None) -> dict[str, Any]:
    environment = {
        "PATH": os.environ["PATH"],
        "AWS_ENDPOINT_URL_SAGEMAKER": url,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        **({} if folder is None else {"PYTHONPATH": str(folder)}),
    }
    command = [sys.executable, str(SCRIPT), step, name]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def _pinned() -> str:
    constraints = (botocores.ROOT / "constraints.txt").read_text()
    found = re.search(r"^botocore==(\S+)$", constraints, re.MULTILINE)
    assert found
    return found[1]
