"""New software and health checks on real nodes: boto3, the whole stack, agents and lifecycle scripts."""

import pytest

import everstep
from everstep.embedded import procfs
from tests.system.stack import group, until


def image_of(stack, instance: str) -> str:
    """What the node's agent was told to run."""
    return procfs.environment(stack.agent_of(instance).pid)["EVERSTEP_IMAGE"]


@pytest.mark.slow
def test_nodes_start_anew_from_the_release_under_their_ids_and_pass_their_health_checks(stack, cluster_name, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, stack.exports[name])
    before = stack.create_cluster(cluster_name, group("a", 2), NodeProvisioningMode="Continuous")
    ours = everstep.client("everstep", endpoint_url=stack.exports["AWS_ENDPOINT_URL_EVERSTEP"])
    ours.register_image_release(Version="7.7.7", ImageId="ami-0123456789abcdef0")
    ours.close()
    batches = {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 50}}}
    stack.sagemaker.update_cluster_software(ClusterName=cluster_name, ImageId="ami-0123456789abcdef0", DeploymentConfig=batches)
    assert stack.status(cluster_name) == "SystemUpdating"
    until("updated", lambda: stack.status(cluster_name) == "InService")
    (after,) = stack.sagemaker.describe_cluster(ClusterName=cluster_name)["InstanceGroups"]
    assert (after["SoftwareUpdateStatus"], after["CurrentImageReleaseVersion"]) == ("Succeeded", "7.7.7")
    assert sorted(stack.running(cluster_name)) == sorted(before)
    assert {image_of(stack, instance) for instance in before} == {"7.7.7"}

    checks = [{"InstanceGroupName": "a", "DeepHealthChecks": ["InstanceStress", "InstanceConnectivity"]}]
    stack.sagemaker.start_cluster_health_check(ClusterName=cluster_name, DeepHealthCheckConfigurations=checks)
    (operation,) = stack.sagemaker.list_cluster_operations(ClusterName=cluster_name, Type="DeepHealthCheck")[
        "ClusterOperationSummaries"
    ]
    named = {"ClusterName": cluster_name, "OperationId": operation["OperationId"]}
    until("examined", lambda: stack.sagemaker.describe_cluster_operation(**named)["Status"] == "Done")
    told = [event["Description"] for event in stack.sagemaker.list_cluster_events(**named)["Events"]]
    assert "Deep health checks of 2 nodes ended: 2 passed, 0 failed, 0 skipped." in told, told
    assert sorted(stack.running(cluster_name)) == sorted(before)
