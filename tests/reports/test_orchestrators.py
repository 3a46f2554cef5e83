"""R-3: a command of the hyp CLI died on every account with one Slurm cluster, because it looked for Orchestrator.Eks in all of them.

The command itself is run in tests/clients/test_hyp.py. Here: a member that was not sent is absent, on the wire and in what clients print.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.api.serving import KEY_ID, SECRET, Server, group
from tests.clients.aws import aws_commands

VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k8s"}}
FLEET: dict[str, dict[str, Any]] = {
    "k8s": {"Orchestrator": EKS, "VpcConfig": VPC},
    "plain": {},
    "slurm": {"Orchestrator": {"Slurm": {}}},
}


@pytest.fixture
def fleet(sagemaker: Any) -> None:
    for name, orchestrator in FLEET.items():
        sagemaker.create_cluster(ClusterName=name, InstanceGroups=[group()], **orchestrator)


def test_the_orchestrator_is_on_the_wire_exactly_when_it_was_sent(fleet: None, server: Server):
    for name, sent in FLEET.items():
        described = json.loads(server.call("DescribeCluster", {"ClusterName": name}).content)
        assert {member: described[member] for member in ("Orchestrator", "VpcConfig") if member in described} == sent


def test_the_aws_command_lists_and_describes_a_mixed_fleet(fleet: None, server: Server):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "AWS_ENDPOINT_URL_SAGEMAKER": server.url,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with aws_commands(environment) as aws:
        listed = [one["ClusterName"] for one in aws("list-clusters", "--sort-by", "NAME").answer["ClusterSummaries"]]
        assert listed == sorted(FLEET)
        shown = {name: aws("describe-cluster", "--cluster-name", name).answer for name in listed}
    assert {name: one.get("Orchestrator", "absent") for name, one in shown.items()} == {
        "k8s": EKS,
        "plain": "absent",
        "slurm": {"Slurm": {}},
    }
