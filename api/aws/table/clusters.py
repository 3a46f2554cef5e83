"""Operations of clusters."""

from __future__ import annotations

from api.aws.table.kinds import Listing, Operation, Table, honoured, refused, stored
from api.aws.table.parts import CREATED, ORDER, PAGE, TAG, VPC, whole
from api.aws.table.specification import CLUSTER, GROUPS
from api.aws.translate import clusters as wire
from api.operations import clusters

_NO_PLANS = "There are no training plans here."
_OF_PLANS = ("TrainingPlanArn", "TrainingPlanStatus")

CLUSTERS: Table = {
    "CreateCluster": Operation(
        wire.read_create,
        clusters.create,
        wire.write_arn,
        note="Answers as soon as the wish is stored. Its name is taken until the cluster is gone.",
        members={
            **honoured("ClusterName", note="Unique among the clusters that are not deleted."),
            **GROUPS,
            **CLUSTER,
            **stored(
                *whole("VpcConfig", *VPC), note="Immutable, and required with Eks. Nodes stand in the provider's own network."
            ),
            **honoured(*TAG),
        },
    ),
    "DescribeCluster": Operation(
        wire.read_name,
        clusters.describe,
        wire.write_description,
        note="Groups come in the caller's order; members that were not sent stay absent.",
        members=honoured("ClusterName"),
        absent={
            **{f"{groups}[].{name}": _NO_PLANS for groups in ("InstanceGroups", "RestrictedInstanceGroups") for name in _OF_PLANS},
            "RestrictedInstanceGroups[].EnvironmentConfig.S3OutputPath": "Nothing is written to S3 by the nodes of themselves.",
            "AutoScaling.FailureMessage": "The setting does not fail by itself; what the cluster fails with is its FailureMessage.",
        },
    ),
    "UpdateCluster": Operation(
        wire.read_update,
        clusters.update,
        wire.write_arn,
        note=(
            "Groups are matched by name; unlisted ones stay as they are. Mutable members that are left out keep their value; an immutable one "
            "that is left out or changed is refused. Any member may be sent alone. A call that changes nothing starts nothing."
        ),
        members={
            **honoured("ClusterName"),
            **GROUPS,
            **CLUSTER,
            **honoured("InstanceGroupsToDelete", note="One group at least must be left."),
        },
    ),
    "DeleteCluster": Operation(
        wire.read_name,
        clusters.delete,
        wire.write_arn,
        note="Idempotent while the cluster is Deleting; ResourceNotFound afterwards.",
        members=honoured("ClusterName"),
    ),
    "ListClusters": Listing(
        wire.read_listing,
        clusters.listed,
        lambda rows, _members: wire.write_listing(rows),
        note="Oldest first unless SortOrder says otherwise. Clusters that are being deleted show; those that are gone do not.",
        members={
            **honoured(*CREATED, *PAGE, *ORDER, "NameContains"),
            **refused({"TrainingPlanArn": "Leave it out: there are no training plans here."}),
        },
        absent={"ClusterSummaries[].TrainingPlanArns": _NO_PLANS},
    ),
}
