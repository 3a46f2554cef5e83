"""The commands of the ``hyp`` command line that talk to SageMaker, against a whole running stack.

Each sends telemetry to a host of Amazon's and goes on when there is none; what that prints is not looked at. STS, which ``list-cluster`` asks
first whether the credentials are any, is another service than ours: a stand-in answers for it, and refuses everything that is asked of EKS.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.clients.environments import program_of, run
from tests.system.stack import Stack, group, until

pytestmark = pytest.mark.clients

EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k8s"}}
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}


IDENTITY = b"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::123456789012:user/test</Arn><UserId>test</UserId><Account>123456789012</Account>
</GetCallerIdentityResult></GetCallerIdentityResponse>"""


class OtherServices(BaseHTTPRequestHandler):
    """STS knows who calls; every other service knows nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(200, IDENTITY)

    def do_GET(self) -> None:
        self._answer(404, b'{"message": "no such cluster"}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[dict[str, str]]:
    """What tells a client where the other services are."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherServices)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hyp(stack: Stack, tmp_path: Path, elsewhere: dict[str, str]):
    def hyp(*arguments: str) -> subprocess.CompletedProcess[str]:
        # The kubeconfig is written by the aws command, which is found on the path.
        path = f"{program_of('hyp', 'hyp').parent}:{os.environ['PATH']}"
        return run([str(program_of("hyp", "hyp")), *arguments], {**elsewhere, **stack.exports, "PATH": path}, tmp_path)

    return hyp


def test_a_cluster_is_described_with_all_that_it_has(stack: Stack, cluster_name: str, hyp):
    stack.create_cluster(cluster_name, group("workers", 1), Orchestrator=EKS, VpcConfig=VPC)
    told = hyp("describe", "cluster", cluster_name)
    assert told.returncode == 0, told.stderr
    for text in ("InService", cluster_name, '"InstanceGroupName": "workers"', '"CurrentCount": 1', EKS["Eks"]["ClusterArn"]):
        assert text in told.stdout


def test_a_cluster_that_does_not_exist_is_told_in_words(hyp):
    assert "not found" in hyp("describe", "cluster", "nobody").stdout


def test_a_cluster_is_updated_by_its_groups_and_its_recovery(stack: Stack, cluster_name: str, hyp):
    stack.create_cluster(cluster_name, group("workers", 1), group("spare", 1), NodeRecovery="Automatic")
    told = hyp("update", "cluster", "--cluster-name", cluster_name, "--node-recovery", "None")
    assert told.returncode == 0, told.stderr
    assert stack.sagemaker.describe_cluster(ClusterName=cluster_name)["NodeRecovery"] == "None"
    until("settled", lambda: stack.status(cluster_name) == "InService")
    groups = json.dumps(
        [
            {
                "instance_group_name": "workers",
                "instance_type": "ml.c5.large",
                "instance_count": 2,
                "execution_role": group("x", 1)["ExecutionRole"],
            }
        ]
    )
    told = hyp(
        "update", "cluster", "--cluster-name", cluster_name, "--instance-groups", groups, "--instance-groups-to-delete", '["spare"]'
    )
    assert told.returncode == 0, told.stderr
    until("updated", lambda: stack.status(cluster_name) == "InService" and len(stack.running(cluster_name)) == 2)
    described = stack.sagemaker.describe_cluster(ClusterName=cluster_name)["InstanceGroups"]
    assert [(one["InstanceGroupName"], one["TargetCount"]) for one in described] == [("workers", 2)]


def test_a_fleet_of_every_kind_of_orchestrator_is_listed_as_far_as_it_goes_without_kubernetes(stack: Stack, cluster_name: str, hyp):
    """R-3: a cluster without Orchestrator.Eks ended the command for everybody who had one."""
    mixed = {"k8s": {"Orchestrator": EKS, "VpcConfig": VPC}, "slurm": {"Orchestrator": {"Slurm": {}}}, "plain": {}}
    try:
        for kind, orchestrator in mixed.items():
            stack.create_cluster(f"{cluster_name}-{kind}", group("workers", 0), **orchestrator)
        stack.create_cluster(cluster_name, group("workers", 1))
        told = hyp("list-cluster", "--output", "table")
    finally:
        for kind in mixed:
            stack.delete_cluster(f"{cluster_name}-{kind}")
    assert told.returncode == 0, told.stderr
    rows = [[cell.strip() for cell in line.split("|")[:3]] for line in told.stdout.splitlines() if "|" in line]
    assert all([f"{cluster_name}-{kind}", "N/A", "0"] in rows for kind in mixed), told.stdout
    assert cluster_name not in [row[0] for row in rows], "it has a node, and the command wants to see it in Kubernetes"
