"""Every method of sagemaker-core's ``Cluster``, against the server that the environment names: ``sagemaker_core_cluster.py NAME``.

Prints one JSON document, the last line, of what the objects held after each step.
"""

import json
import sys
import time

from botocore.exceptions import ClientError
from pydantic import ValidationError
from sagemaker.core.resources import Cluster
from sagemaker.core.shapes import ClusterInstanceGroupSpecification, Tag

name = sys.argv[1]
told = {}


def workers(count):
    return ClusterInstanceGroupSpecification(
        instance_group_name="workers",
        instance_type="ml.c5.large",
        instance_count=count,
        execution_role="arn:aws:iam::123456789012:role/test",
    )


def until_nodes(count):
    """The class has no wait for nodes: its own listing, until all of them run."""
    for _ in range(300):
        found = list(cluster.get_all_nodes())
        if len(found) == count and all(node.instance_status.status == "Running" for node in found):
            return found
        time.sleep(0.2)
    raise SystemExit(f"no {count} running nodes within a minute: {found}")


cluster = Cluster.create(
    cluster_name=name,
    instance_groups=[workers(2)],
    node_recovery="Automatic",
    node_provisioning_mode="Continuous",
    tags=[Tag(key="team", value="blue")],
)
told["created"] = [cluster.cluster_name, cluster.node_recovery, [group.target_count for group in cluster.instance_groups]]
cluster.wait_for_status("InService", poll=1, timeout=60)
told["in_service"] = cluster.cluster_status

nodes = until_nodes(2)
told["nodes"] = sorted(node.instance_id for node in nodes)
try:
    cluster.get_node(node_id=nodes[0].instance_id)
except ValidationError as error:  # pydantic's: the method hands the whole answer to the class of the answer's one member
    (mismatch,) = error.errors()
    node = mismatch["input"]
    told["node"] = [mismatch["loc"], node["instance_id"] == nodes[0].instance_id, node["instance_status"]["status"]]

cluster.update(instance_groups=[workers(3)])
until_nodes(3)
cluster.refresh()
told["updated"] = [[group.instance_group_name, group.current_count, group.target_count] for group in cluster.instance_groups]

answer = cluster.batch_delete_nodes(node_ids=[nodes[0].instance_id])
told["batch_deleted"] = answer.successful == [nodes[0].instance_id]
told["left"] = nodes[0].instance_id not in [node.instance_id for node in until_nodes(2)]

# On an object that was described the method sends the groups of the answer, which its own botocore refuses.
Cluster(cluster_name=name).update_software()
cluster.refresh()
told["patching"] = cluster.cluster_status
cluster.wait_for_status("InService", poll=1, timeout=60)

told["listed"] = [[one.cluster_name, one.cluster_arn == cluster.cluster_arn] for one in Cluster.get_all(name_contains=name)]
told["got"] = Cluster.get(cluster_name=cluster.cluster_arn).cluster_name
cluster.delete()
cluster.wait_for_delete(poll=1, timeout=60)
try:
    Cluster.get(cluster_name=name)
except ClientError as error:
    told["gone"] = error.response["Error"]["Code"]
print(f"\n{json.dumps(told)}")  # the classes leave a line unfinished
