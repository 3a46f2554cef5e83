"""The ``aws`` command line from the package index, which brings its own and often older service model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from models.cluster.states import ClusterState
from models.session import Sessions
from tests.api.aws.settling import as_it_comes_into_service, settle
from tests.api.serving import KEY_ID, SECRET, Server, group


def aws(server: Server, *arguments: str) -> tuple[int, Any, str]:
    """Exit status, the answer, and what was said on standard error."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "AWS_ENDPOINT_URL_SAGEMAKER": server.url,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "awscli", "sagemaker", *arguments, "--output", "json"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, json.loads(ended.stdout or "null"), ended.stderr


def test_the_aws_command_creates_describes_updates_and_deletes(server: Server, sessions: Sessions):
    groups = json.dumps([group("b"), group("a")])
    _, created, _ = aws(server, "create-cluster", "--cluster-name", "c1", "--instance-groups", groups)
    as_it_comes_into_service(sessions, "c1")
    more = json.dumps([group("a", 5)])
    assert aws(server, "update-cluster", "--cluster-name", created["ClusterArn"], "--instance-groups", more)[1] == created
    _, described, _ = aws(server, "describe-cluster", "--cluster-name", "c1")
    assert [(g["InstanceGroupName"], g["TargetCount"]) for g in described["InstanceGroups"]] == [("b", 2), ("a", 5)]
    as_it_comes_into_service(sessions, "c1")
    assert aws(server, "delete-cluster", "--cluster-name", "c1")[1] == created
    settle(sessions, "c1", ClusterState.DELETED)
    status, _, said = aws(server, "describe-cluster", "--cluster-name", "c1")
    assert status != 0
    assert "(ResourceNotFound)" in said
    assert "does not exist" in said
