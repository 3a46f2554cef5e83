"""The commands of the ``hyp`` command line that talk to SageMaker, against a whole running stack.

Each sends telemetry to a host of Amazon's and goes on when there is none; what that prints is not looked at.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import program_of, run
from tests.system.stack import Stack, group, until

pytestmark = pytest.mark.clients

EKS = {"Eks": {"ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/k8s"}}
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}


@pytest.fixture
def hyp(stack: Stack, tmp_path: Path):
    def hyp(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run([str(program_of("hyp", "hyp")), *arguments], stack.exports, tmp_path)

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
