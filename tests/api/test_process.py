"""The API as the supervisor runs it: a process of its own, configured by its environment."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from everstep.embedded.children import free_port
from tests.api.serving import KEY_ID, NOWHERE, SECRET, TOKEN, Server, settings_for

ROOT = Path(__file__).parent.parent.parent
WAIT_S = 30.0


@contextmanager
def api_process(database_url: str, log: Path, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and its address. ``more`` is added to its environment."""
    port = free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "EVERSTEP_DATABASE_URL": database_url,
        "EVERSTEP_BROKER_URL": NOWHERE,
        "EVERSTEP_MASTER_KEY": base64.b64encode(settings_for("").master_key).decode(),
        "EVERSTEP_BOOTSTRAP_ACCESS_KEY_ID": KEY_ID,
        "EVERSTEP_BOOTSTRAP_SECRET_ACCESS_KEY": SECRET,
        "EVERSTEP_BOOTSTRAP_TOKEN": TOKEN,
    } | more
    command = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", str(port), "--no-access-log"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def until_alive(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the process ended at its start"
        try:
            if httpx.get(f"{url}/healthz", verify=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the process did not come up")


def test_the_factory_serves_what_the_environment_configures_and_ends_when_asked(database_url: str, tmp_path: Path):
    log = tmp_path / "api.log"
    with api_process(database_url, log) as (process, url):
        until_alive(url, process)
        client = Server(url, settings_for(database_url)).client()
        assert client.list_clusters()["ClusterSummaries"] == []
        with pytest.raises(client.exceptions.ResourceNotFound):
            client.describe_cluster(ClusterName="nobody")
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    said = log.read_text()
    assert f"SageMaker.DescribeCluster by bootstrap ({KEY_ID}): 400" in said
    assert "ListClusters" not in said  # it only looked, and was answered
    assert "Traceback" not in said
    assert SECRET not in said
    assert TOKEN not in said


def test_a_process_without_its_settings_says_which_is_missing(tmp_path: Path):
    command = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", "1"]
    ended = subprocess.run(
        command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert "EVERSTEP_DATABASE_URL is not set" in ended.stderr
