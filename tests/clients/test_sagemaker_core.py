"""sagemaker-core's resource classes, which read answers with pydantic and are stricter than boto3, against a whole running stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import python_of, run
from tests.system.stack import Stack, group

pytestmark = pytest.mark.clients

SCRIPTS = Path(__file__).with_name("scripts")


def story(stack: Stack, script: str, argument: str, home: Path) -> dict[str, Any]:
    ended = run([str(python_of("sagemaker-core")), str(SCRIPTS / script), argument], stack.exports, home)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return json.loads(ended.stdout.strip().splitlines()[-1])


def test_a_cluster_object_goes_through_all_of_its_methods(stack: Stack, cluster_name: str, tmp_path: Path):
    told = story(stack, "sagemaker_core_cluster.py", cluster_name, tmp_path)
    assert len(told.pop("nodes")) == 2
    assert told.pop("patching") in {"SystemUpdating", "InService"}, "in service: it has gone through it already"
    assert told == {
        "created": [cluster_name, "Automatic", [2]],
        "in_service": "InService",
        "node": [["node_details"], True, "Running"],
        "updated": [["workers", 3, 3]],
        "batch_deleted": True,
        "left": True,
        "listed": [[cluster_name, True]],
        "got": cluster_name,
        "gone": "ResourceNotFound",
    }


def test_a_policy_and_a_quota_go_through_all_of_their_methods(stack: Stack, cluster_name: str, tmp_path: Path):
    stack.create_cluster(cluster_name, group("workers", 1))
    arn = stack.sagemaker.describe_cluster(ClusterName=cluster_name)["ClusterArn"]
    assert story(stack, "sagemaker_core_governance.py", arn, tmp_path) == {
        "policy_created": ["policy", 1, 90],
        "policy_refreshed": 1,
        "policy_updated": [2, 95],
        "policy_conflict": "ConflictException",
        "policies": ["policy"],
        "quota_created": ["quota", 1, "blue", 2],
        "quota_updated": [2, 20],
        "quotas": ["quota"],
        "gone": ["ResourceNotFound", "ResourceNotFound"],
    }
