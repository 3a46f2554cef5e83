"""``everstep.client``: boto3's own client, found as boto3 finds it, and waiters for clusters."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from botocore.exceptions import EndpointResolutionError, WaiterError

import everstep
from everstep.client import MODELS, UnknownService

KEYS = {"region_name": "us-east-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}


@pytest.fixture
def told() -> Iterator[tuple[str, list[tuple[int, dict[str, Any]]]]]:
    """A server that tells what the list says, one answer a call and the last one for ever."""
    answers: list[tuple[int, dict[str, Any]]] = []

    class Teller(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Teller)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


def status(word: str) -> tuple[int, dict[str, Any]]:
    return 200, {"ClusterArn": "arn", "ClusterStatus": word, "InstanceGroups": []}


GONE = (400, {"__type": "ResourceNotFound", "Message": "does not exist"})


@pytest.mark.parametrize(
    "waiter, answers",
    [
        ("cluster_in_service", [status("Creating"), status("InService")]),
        ("ClusterInService", [status("Updating"), status("RollingBack"), status("InService")]),
        ("cluster_deleted", [status("Deleting"), GONE]),
    ],
)
def test_a_waiter_returns_when_the_cluster_is_there(told, waiter, answers):
    url, will_tell = told
    will_tell += answers
    client = everstep.client("sagemaker", endpoint_url=url, **KEYS)
    client.get_waiter(waiter).wait(ClusterName="c1", WaiterConfig={"Delay": 0, "MaxAttempts": 5})


@pytest.mark.parametrize(
    "waiter, answers",
    [
        ("cluster_in_service", [status("Creating"), status("Failed")]),
        ("cluster_in_service", [GONE]),
        ("cluster_deleted", [status("Deleting"), status("Failed")]),
    ],
)
def test_a_waiter_gives_up_when_the_cluster_never_will_be(told, waiter, answers):
    url, will_tell = told
    will_tell += answers
    client = everstep.client("sagemaker", endpoint_url=url, **KEYS)
    with pytest.raises(WaiterError):
        client.get_waiter(waiter).wait(ClusterName="c1", WaiterConfig={"Delay": 0, "MaxAttempts": 5})


def test_botocore_s_own_waiters_are_still_there():
    client = everstep.client("sagemaker", **KEYS)
    assert client.get_waiter("endpoint_in_service").name == "EndpointInService"
    assert {"endpoint_in_service", "cluster_in_service", "cluster_deleted"} <= set(client.waiter_names)


def test_the_endpoint_is_found_as_boto3_finds_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", "http://127.0.0.1:8600")
    assert everstep.client("sagemaker", **KEYS).meta.endpoint_url == "http://127.0.0.1:8600"


def test_other_services_are_refused_with_what_there_is():
    with pytest.raises(UnknownService, match=r"'s3'.*'everstep' and 'sagemaker'"):
        everstep.client("s3")


def test_our_own_operations_have_a_client_with_its_exceptions_waiters_and_endpoint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_EVERSTEP", "http://127.0.0.1:8600")
    client = everstep.client("everstep", **KEYS)
    assert client.meta.endpoint_url == "http://127.0.0.1:8600"
    assert client.meta.service_model.signing_name == "everstep"
    assert {"job_training", "job_succeeded", "job_ended"} <= set(client.waiter_names)
    assert issubclass(client.exceptions.ResourceNotFound, client.exceptions.ClientError)


def test_without_an_endpoint_nothing_is_sent_to_a_host_of_somebody_else_s(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL_EVERSTEP", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with pytest.raises(EndpointResolutionError, match="everstep env"):
        everstep.client("everstep", **KEYS).list_jobs()


def test_an_older_copy_of_the_model_on_the_machine_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for kept in MODELS.glob("everstep/*/service-2.json"):
        old = json.loads(kept.read_text()) | {"operations": {}}
        place = tmp_path / kept.relative_to(MODELS)
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(old))
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    assert hasattr(everstep.client("everstep", endpoint_url="http://127.0.0.1:1", **KEYS), "submit_job")


def test_numbers_that_json_has_no_word_for_are_numbers_again(told):
    url, will_tell = told
    will_tell += [(200, {"Steps": [{"Number": 1, "Generation": 1, "Loss": "NaN", "Seconds": "Infinity", "At": 1}]})]
    [step] = everstep.client("everstep", endpoint_url=url, **KEYS).list_job_steps(JobId="job-1")["Steps"]
    assert math.isnan(step["Loss"])
    assert step["Seconds"] == math.inf


def node(word: str) -> tuple[int, dict[str, Any]]:
    return 200, {"NodeDetails": {"InstanceId": "i-1", "InstanceStatus": {"Status": word}}}


def test_a_node_is_waited_for_until_it_runs(told):
    url, will_tell = told
    will_tell += [node("Pending"), node("Running")]
    client = everstep.client("sagemaker", endpoint_url=url, **KEYS)
    client.get_waiter("node_running").wait(ClusterName="c1", NodeId="i-1", WaiterConfig={"Delay": 0, "MaxAttempts": 3})
    will_tell[:] = [node("Failure")]
    with pytest.raises(WaiterError):
        client.get_waiter("node_running").wait(ClusterName="c1", NodeId="i-1", WaiterConfig={"Delay": 0, "MaxAttempts": 3})


def test_the_module_and_the_function_are_one_whatever_is_imported_first():
    program = """
import everstep.client
import everstep
assert callable(everstep.client)
from everstep.client import client
try:
    everstep.client("nonsense")
except everstep.client.UnknownService:
    print("right")
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "right\n"
