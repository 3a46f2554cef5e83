"""Where other people's expectations of this API contradict its service model or its documentation, and therefore us.

``docs/compatibility.md`` has the same lists, and a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What one of moto's own tests does against Everstep.

    ``says`` is a part of what the test says when it fails, so that it is known to fail for the reason given. ``is_impatience``: the one thing
    it wants is a cluster that is in service in the answer after its creation; it passes when the harness sees to that.
    """

    says: str = ""
    why: str = ""
    is_impatience: bool = False

    @property
    def passes(self) -> bool:
        return not self.says


MOTO: dict[str, Outcome] = {
    "test_create_cluster": Outcome(
        "cluster/testcluster",
        "wants an ARN that ends in the cluster's name; the model's pattern wants twelve characters, and a name that is used again gets another ARN",
    ),
    "test_describe_cluster": Outcome(
        "'Creating' == 'InService'",
        "wants a cluster in service, with 25 nodes, in the answer after its creation, and groups without their Status",
    ),
    "test_delete_cluster": Outcome(
        "ConflictException",
        "deletes while the cluster is being created, and wants ValidationException where the model has ResourceNotFound",
    ),
    "test_describe_cluster_node": Outcome(
        "nodeId",
        "asks for a node by 'testgroup2-4'; the model's pattern wants i- and hexadecimal digits",
    ),
    "test_list_clusters": Outcome(
        "'Creating' == 'InService'",
        "wants clusters in service in the answer after their creation: polling would do, and with it the test passes",
        is_impatience=True,
    ),
    "test_list_clusters_filters_sorting": Outcome(
        "sortBy",
        "sends SortBy=Name; the model's enumeration has NAME and CREATION_TIME",
    ),
    "test_list_cluster_nodes": Outcome(
        "0 == 25",
        "wants 25 nodes in the answer after the creation, one of them called 'testgroup2-0'; the model's pattern wants i- and hexadecimal digits",
    ),
    "test_tag_cluster": Outcome(),
    "test_create_cluster_duplicate_name": Outcome(),
    "test_create_cluster_bad_source_s3_uri": Outcome(
        "DID NOT RAISE",
        "wants buckets whose names do not begin with 'sagemaker' to be refused; the model has no such constraint, and AWS's own examples use others",
    ),
}
"""By the name of the test in ``tests/test_sagemaker/test_sagemaker_cluster.py`` of moto's source distribution."""
