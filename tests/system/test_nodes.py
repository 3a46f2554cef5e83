"""Single nodes of a real stack: lifecycle scripts that fail, reboots, replacements, moves, volumes. Real agents, real scripts, real directories."""

import pytest

from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE
from tests.system.stack import Stack, group, until

FLAKY = """#!/bin/sh
mkdir -p {notes}; echo try >> {notes}/$EVERSTEP_NODE_ID
echo "download of $EVERSTEP_NODE_ID"
[ $(wc -l < {notes}/$EVERSTEP_NODE_ID) -ge 3 ] || exit 1
"""
VOLUME = "vol-0123456789abcdef0"
VPC = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}


def eks(name: str) -> dict:
    arn = f"arn:aws:eks:us-east-1:123456789012:cluster/{name}"
    return {"NodeProvisioningMode": "Continuous", "Orchestrator": {"Eks": {"ClusterArn": arn}}, "VpcConfig": VPC}


@pytest.fixture
def scripts(stack: Stack, request):
    """``scripts(name, text)`` puts a lifecycle script into the store; returns the configuration that names it."""

    def put(name: str, text: str) -> dict:
        folder = stack.home.store / "sagemaker-scripts" / request.node.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        return {"SourceS3Uri": f"s3://sagemaker-scripts/{request.node.name}", "OnCreate": name}

    return put


def processes(instance_id: str) -> set[procfs.ProcessKey]:
    return set(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == instance_id))


def shown(stack: Stack, name: str, group_name: str) -> dict:
    """The newest node of a group, as a listing shows it."""
    found = stack.sagemaker.list_cluster_nodes(ClusterName=name, IncludeNodeLogicalIds=True)["ClusterNodeSummaries"]
    return next(
        (node for node in reversed(found) if node["InstanceGroupName"] == group_name), {"InstanceStatus": {"Status": "none"}}
    )


def test_a_flaky_script_is_tried_again_and_a_hopeless_one_sinks_no_cluster(stack, cluster_name, scripts, tmp_path):
    """R-7. A node is rebooted without its script and replaced with it; its volume stays through the one and not the other."""
    good = group("good", 1, LifeCycleConfig=scripts("flaky.sh", FLAKY.format(notes=tmp_path)))
    bad = group("bad", 1, LifeCycleConfig=scripts("broken.sh", "#!/bin/sh\necho no such disk >&2; exit 7\n"))
    arn = stack.sagemaker.create_cluster(ClusterName=cluster_name, InstanceGroups=[good, bad], **eks("nodes"))["ClusterArn"]
    (node,) = until("the flaky one runs", lambda: stack.running(cluster_name))
    assert (tmp_path / node).read_text() == "try\n" * 3
    told = [event["Description"] for event in stack.sagemaker.list_cluster_events(ClusterName=cluster_name, NodeId=node)["Events"]]
    assert [text for text in reversed(told) if "flaky.sh started" in text] == [
        "Lifecycle script flaky.sh started.",
        "Lifecycle script flaky.sh started (try 2).",
        "Lifecycle script flaky.sh started (try 3).",
    ]

    def failure() -> str | None:
        status = shown(stack, cluster_name, "bad")["InstanceStatus"]
        return status["Message"] if status["Status"] == "Failure" else None

    message = until("the hopeless one shows", failure)
    assert "broken.sh failed with exit code 7" in message
    assert "no such disk" in message
    assert stack.status(cluster_name) == "InService"

    stack.sagemaker.attach_cluster_node_volume(ClusterArn=arn, NodeId=node, VolumeId=VOLUME)
    link = stack.home.hosts / node / "attached" / "xvdf"
    until("the volume is there", link.is_dir)
    (link / "weights").write_text("1 2 3")
    before = processes(node)
    assert stack.sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster_name, NodeIds=[node])["Successful"] == [node]
    until("every process is another one", lambda: processes(node) and not before & processes(node))
    until("it runs again", lambda: stack.running(cluster_name) == [node])
    assert (tmp_path / node).read_text() == "try\n" * 3
    assert (link / "weights").read_text() == "1 2 3"

    stack.sagemaker.batch_replace_cluster_nodes(ClusterName=cluster_name, NodeIds=[node])
    (other,) = until("another one runs", lambda: [one for one in stack.running(cluster_name) if one != node])
    assert (tmp_path / other).read_text() == "try\n" * 3
    until("the old one is gone", lambda: node not in stack.hosts())
    assert (stack.home.root / "volumes" / VOLUME / "weights").read_text() == "1 2 3"
    until("its volume is free", lambda: stack.sagemaker.attach_cluster_node_volume(ClusterArn=arn, NodeId=other, VolumeId=VOLUME))


@pytest.mark.slow
def test_a_script_that_hangs_is_ended_at_its_limit_while_others_run(stack, cluster_name, scripts):
    good, bad = group("good", 1), group("bad", 1, LifeCycleConfig=scripts("hangs.sh", "#!/bin/sh\necho waiting; sleep 600\n"))
    stack.sagemaker.create_cluster(ClusterName=cluster_name, InstanceGroups=[good, bad], NodeProvisioningMode="Continuous")
    until("the good one runs", lambda: len(stack.running(cluster_name)) == 1)
    until("the other one shows", lambda: shown(stack, cluster_name, "bad")["InstanceStatus"]["Status"] == "Failure", 90)
    assert "exit code 124" in shown(stack, cluster_name, "bad")["InstanceStatus"]["Message"]


@pytest.mark.slow
def test_a_moved_node_keeps_its_address_and_runs_the_scripts_of_its_new_group(stack, cluster_name, scripts, tmp_path):
    other_name = f"{cluster_name}-b"[-40:].strip("-")
    script = scripts("theirs.sh", f"#!/bin/sh\necho theirs > {tmp_path}/$EVERSTEP_NODE_ID\n")
    try:
        first, second = stack.create_cluster(cluster_name, group("ours", 2), **eks("here"))
        stack.create_cluster(other_name, group("theirs", 1, LifeCycleConfig=script), **eks("there"))
        arns = [stack.sagemaker.describe_cluster(ClusterName=name)["ClusterArn"] for name in (cluster_name, other_name)]
        address = stack.sagemaker.describe_cluster_node(ClusterName=cluster_name, NodeId=first)["NodeDetails"]["PrivatePrimaryIp"]
        stack.sagemaker.move_cluster_nodes(
            SourceClusterArn=arns[0],
            SourceInstanceGroupName="ours",
            TargetClusterArn=arns[1],
            TargetInstanceGroupName="theirs",
            NodeIds=[first],
        )
        until("it serves there", lambda: first in stack.running(other_name))
        assert stack.running(cluster_name) == [second]
        moved = stack.sagemaker.describe_cluster_node(ClusterName=other_name, NodeId=first)["NodeDetails"]
        assert moved["PrivatePrimaryIp"] == address
        assert (tmp_path / first).read_text() == "theirs\n"
    finally:
        stack.delete_cluster(other_name)
