"""boto3 and the AWS command line, unmodified, through the life of a cluster."""

import json
import re
import threading

import pytest
from botocore.exceptions import ClientError

from tests.system.stack import aws, group, until


class Poller:
    """Asks for a cluster's status ten times a second from a thread of its own, from the answer to a request on."""

    def __init__(self, stack, name):
        self.seen: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, args=(stack, name))
        self._words = {*stack.sagemaker.meta.service_model.shape_for("ClusterStatus").enum, "gone"}

    def _poll(self, stack, name):
        while not self.seen or (self.seen[-1] != "gone" and not self._stop.wait(0.1)):
            self.seen.append(stack.status(name))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def check(self, sequence: str) -> None:
        """What was seen is the sequence, a pattern over words that end in a comma, and every word is one of the model's."""
        assert re.fullmatch(sequence, "".join(f"{status}," for status in self.seen)), self.seen
        assert set(self.seen) <= self._words


def test_a_poller_at_ten_hertz_sees_no_illegal_sequence_of_statuses(stack, cluster_name):
    """R-5: there is no waiter for clusters, so everybody polls: no status flickers, and none is missing right after the request."""
    stack.sagemaker.create_cluster(ClusterName=cluster_name, InstanceGroups=[group("b", 1), group("a", 2)])
    with Poller(stack, cluster_name) as poller:
        until("in service", lambda: stack.status(cluster_name) == "InService")
    poller.check("(Creating,)+(InService,)*")
    kept = set(stack.running(cluster_name))
    stack.sagemaker.update_cluster(ClusterName=cluster_name, InstanceGroups=[group("a", 3)])
    with Poller(stack, cluster_name) as poller:
        until("bigger", lambda: stack.status(cluster_name) == "InService" and len(stack.running(cluster_name)) == 4)
    poller.check("(Updating,)+(InService,)*")
    assert kept < set(stack.running(cluster_name)), "scaling up keeps what runs"
    stack.sagemaker.update_cluster(ClusterName=cluster_name, InstanceGroupsToDelete=["b"])
    with Poller(stack, cluster_name) as poller:
        until("smaller", lambda: stack.status(cluster_name) == "InService" and len(stack.running(cluster_name)) == 3)
    poller.check("(Updating,)+(InService,)*")
    stack.sagemaker.delete_cluster(ClusterName=cluster_name)
    with Poller(stack, cluster_name) as poller:
        until("the poller has seen the end", lambda: poller.seen and poller.seen[-1] == "gone")
    poller.check("(Deleting,)+gone,")
    assert stack.hosts() & kept == set()


def test_groups_that_are_sent_in_another_order_or_left_out_keep_their_nodes(stack, cluster_name):
    """R-2: a tool that matched groups by their place in the list changed those which nobody had touched. A group is its name."""
    stack.create_cluster(cluster_name, group("a", 1), group("b", 1), group("c", 1))
    named = {node["InstanceGroupName"]: node["InstanceId"] for node in stack.nodes(cluster_name)}
    agents = {instance: stack.agent_of(instance) for instance in named.values()}
    stack.sagemaker.update_cluster(ClusterName=cluster_name, InstanceGroups=[group("c", 1), group("b", 1), group("a", 1)])
    until("settled", lambda: stack.status(cluster_name) == "InService")
    assert {node["InstanceGroupName"]: node["InstanceId"] for node in stack.nodes(cluster_name)} == named
    stack.sagemaker.update_cluster(ClusterName=cluster_name, InstanceGroups=[group("b", 1)], InstanceGroupsToDelete=["a"])
    until("without a", lambda: stack.status(cluster_name) == "InService" and len(stack.nodes(cluster_name)) == 2)
    assert {node["InstanceGroupName"]: node["InstanceId"] for node in stack.nodes(cluster_name)} == {
        name: named[name] for name in ("b", "c")
    }
    assert all(stack.agent_of(named[name]) == agents[named[name]] for name in ("b", "c")), "the same processes still run"


def test_groups_keep_the_callers_order_and_are_merged_by_name(stack, cluster_name):
    before = stack.create_cluster(cluster_name, group("c", 1), group("a", 1), group("b", 1))
    stack.sagemaker.update_cluster(
        ClusterName=cluster_name, InstanceGroups=[group("b", 1), group("c", 1), group("d", 1)], InstanceGroupsToDelete=["a"]
    )
    until("merged", lambda: stack.status(cluster_name) == "InService" and len(stack.running(cluster_name)) == 3)
    described = stack.sagemaker.describe_cluster(ClusterName=cluster_name)
    assert [one["InstanceGroupName"] for one in described["InstanceGroups"]] == ["c", "b", "d"]
    assert len(set(before) & set(stack.running(cluster_name))) == 2, "untouched groups keep their instances"


def test_a_scale_down_ends_exactly_as_many_nodes_as_were_asked_for(stack, cluster_name):
    before = set(stack.create_cluster(cluster_name, group("workers", 4)))
    stack.sagemaker.update_cluster(ClusterName=cluster_name, InstanceGroups=[group("workers", 1)])
    until("smaller", lambda: stack.status(cluster_name) == "InService" and len(stack.nodes(cluster_name)) == 1)
    (left,) = stack.running(cluster_name)
    assert left in before
    until("hosts ended", lambda: stack.hosts() & before == {left})


def test_the_aws_command_line_drives_a_cluster_from_creation_to_deletion(stack, cluster_name):
    groups = json.dumps([group("workers", 1)])
    created = aws(
        stack, "create-cluster", "--cluster-name", cluster_name, "--instance-groups", groups, "--node-recovery", "Automatic"
    )
    assert created.returncode == 0, created.stderr
    arn = json.loads(created.stdout)["ClusterArn"]
    until("in service", lambda: stack.status(cluster_name) == "InService" and stack.running(cluster_name))
    described = json.loads(aws(stack, "describe-cluster", "--cluster-name", arn).stdout)
    assert (described["ClusterName"], described["NodeRecovery"]) == (cluster_name, "Automatic")
    bigger = json.dumps([group("workers", 2)])
    assert aws(stack, "update-cluster", "--cluster-name", cluster_name, "--instance-groups", bigger).returncode == 0
    until("updated", lambda: stack.status(cluster_name) == "InService" and len(stack.running(cluster_name)) == 2)
    listed = json.loads(aws(stack, "list-cluster-nodes", "--cluster-name", cluster_name).stdout)
    assert len(listed["ClusterNodeSummaries"]) == 2
    assert aws(stack, "delete-cluster", "--cluster-name", cluster_name).returncode == 0
    until("gone", lambda: stack.status(cluster_name) == "gone")
    assert "ResourceNotFound" in aws(stack, "describe-cluster", "--cluster-name", cluster_name).stderr


def test_a_killed_node_is_replaced_and_keeps_its_logical_id(stack, cluster_name):
    instances = stack.create_cluster(cluster_name, group("workers", 2), NodeProvisioningMode="Continuous")
    logical = {node["InstanceId"]: node["NodeLogicalId"] for node in _with_logical_ids(stack, cluster_name)}
    stack.kill_node(instances[0])

    def replaced():
        nodes = {node["InstanceId"]: node for node in _with_logical_ids(stack, cluster_name)}
        running = {instance for instance, node in nodes.items() if node["InstanceStatus"]["Status"] == "Running"}
        fresh = running - set(instances)
        return len(running) == 2 and fresh and instances[1] in running and nodes[fresh.pop()]["NodeLogicalId"]

    assert until("replaced", replaced, 60) == logical[instances[0]]


def test_a_group_that_finds_no_capacity_rolls_a_classic_cluster_back_with_the_reason(stack, cluster_name):
    stack.sagemaker.create_cluster(ClusterName=cluster_name, InstanceGroups=[group("workers", 1), group("too-many", 30)])
    with Poller(stack, cluster_name) as poller:
        until("failed", lambda: stack.status(cluster_name) == "Failed", 90)
    poller.check("(Creating,)+(RollingBack,)*(Failed,)*")
    message = stack.sagemaker.describe_cluster(ClusterName=cluster_name)["FailureMessage"]
    assert "too-many" in message
    assert "all 12 hosts" in message
    until("nothing left running", lambda: not stack.nodes(cluster_name))


def test_events_tell_the_story_of_a_continuous_cluster(stack, cluster_name):
    stack.create_cluster(cluster_name, group("workers", 1), NodeProvisioningMode="Continuous")
    events = stack.sagemaker.list_cluster_events(ClusterName=cluster_name)["Events"]
    assert {event["ResourceType"] for event in events} >= {"Cluster", "Instance"}
    assert events == sorted(events, key=lambda event: event["EventTime"], reverse=True)


@pytest.mark.parametrize("operation", ["batch_reboot_cluster_nodes", "list_training_plans", "create_training_job"])
def test_an_operation_that_is_not_built_is_refused_in_words_and_not_retried(stack, operation):
    arguments = {
        "batch_reboot_cluster_nodes": {"ClusterName": "x", "NodeIds": ["i-12345678"]},
        "create_training_job": {
            "TrainingJobName": "x",
            "RoleArn": "arn:aws:iam::123456789012:role/test",
            "OutputDataConfig": {"S3OutputPath": "s3://x"},
            "StoppingCondition": {},
        },
    }
    with pytest.raises(ClientError) as refused:
        getattr(stack.sagemaker, operation)(**arguments.get(operation, {}))
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert refused.value.response["ResponseMetadata"]["RetryAttempts"] == 0


def _with_logical_ids(stack, name):
    return stack.sagemaker.list_cluster_nodes(ClusterName=name, IncludeNodeLogicalIds=True)["ClusterNodeSummaries"]
