"""The ``aws`` command line from the package index, which is taught our operations by their model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api.aws.service_model import FOLDER
from models.clock import WallClock
from models.job.changes import settle_job
from models.job.states import JobState
from models.job.table import Job
from models.session import Sessions, unit_of_work
from tests.api.serving import KEY_ID, SECRET, Server


def aws(home: Path, url: str, *arguments: str) -> tuple[int, Any, str]:
    """Exit status, the answer, and what was said on standard error."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AWS_ENDPOINT_URL_EVERSTEP": url,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "awscli", *arguments, "--output", "json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, json.loads(ended.stdout or "null"), ended.stderr


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose CLI knows our operations."""
    model = f"file://{FOLDER / 'service-2.json'}"
    assert aws(tmp_path, "", "configure", "add-model", "--service-model", model, "--service-name", "everstep")[0] == 0
    return tmp_path


def test_the_aws_command_submits_lists_and_describes_jobs(home: Path, server: Server, cluster: str):
    words = ["--name", "gpt", "--cluster", cluster, "--command", "python", "train.py", "--working-dir", "/work"]
    status, submitted, said = aws(home, server.url, "everstep", "submit-job", *words, "--replicas", "2", "--env", "LR=0.1")
    assert status == 0, said
    _, listed, _ = aws(home, server.url, "everstep", "list-jobs", "--live")
    assert [job["JobId"] for job in listed["Jobs"]] == [submitted["JobId"]]
    _, described, _ = aws(home, server.url, "everstep", "describe-job", "--job-id", submitted["JobId"])
    assert described["Spec"]["env"] == {"LR": "0.1"}
    assert {"JobId", "ClientToken"}.isdisjoint(described["Spec"])
    status, _, said = aws(home, server.url, "everstep", "describe-job", "--job-id", "job-nothing")
    assert status != 0
    assert "(ResourceNotFound)" in said


def test_with_the_whole_folder_the_aws_command_pages_and_waits(tmp_path: Path, server: Server, job: str, sessions: Sessions):
    shutil.copytree(FOLDER, tmp_path / ".aws" / "models" / "everstep" / FOLDER.name)
    _, listed, _ = aws(tmp_path, server.url, "everstep", "list-job-steps", "--job-id", job, "--page-size", "1")
    assert [step["Number"] for step in listed["Steps"]] == [0, 1]
    with unit_of_work(sessions) as session:
        settle_job(session, session.get_one(Job, job), JobState.FAILED, why="The test says so.", now=WallClock().now())
    assert aws(tmp_path, server.url, "everstep", "wait", "job-ended", "--job-id", job) == (0, None, "")
