"""What red tries with ids of blue: every operation that takes an id, with every id. A new operation fails the test until it is here."""

from __future__ import annotations

from typing import Any, Final

from tests.api.access.world import ALLOTTED, SAVED, SCHEDULING
from tests.api.serving import group

Attack = dict[str, Any]

_OF_CLUSTER: Final[list[Attack]] = [{"ClusterName": "$cluster"}, {"ClusterName": "$cluster_arn"}]
_WORKERS: Final = "workers"


def _nodes(**more: Any) -> list[Attack]:
    """Nodes by both ids: of blue's cluster, through it, through the shared one and through red's; and those of the shared cluster."""
    of_shared = [{"ClusterName": "$shared", "NodeIds": ["$free"], **more}]
    return of_shared + [
        {"ClusterName": cluster, member: [node], **more}
        for member, of_blue, held in (("NodeIds", "$node", "$held"), ("NodeLogicalIds", "$logical", "$held_logical"))
        for cluster, node in (("$cluster", of_blue), ("$shared", of_blue), ("$red", of_blue), ("$shared", held), ("$red", held))
    ]


def _moves() -> list[Attack]:
    groups = {"SourceInstanceGroupName": _WORKERS, "TargetInstanceGroupName": _WORKERS}
    ways = [
        ("$cluster_arn", "$red_arn", {"NodeIds": ["$node"]}),
        ("$red_arn", "$cluster_arn", {"InstanceCount": 1}),
        ("$shared_arn", "$red_arn", {"NodeIds": ["$held"]}),
        ("$shared_arn", "$red_arn", {"NodeLogicalIds": ["$held_logical"]}),
        ("$shared_arn", "$red_arn", {"InstanceCount": 1}),
        ("$red_arn", "$shared_arn", {"InstanceCount": 1}),
        ("$red_arn", "$red_arn", {"NodeIds": ["$node"]}),
    ]
    return [{"SourceClusterArn": source, "TargetClusterArn": target, **groups, **which} for source, target, which in ways]


def _changed(cluster: str = "ClusterName", **more: Any) -> list[Attack]:
    """A change of one node; of the shared cluster's, of a free one, too."""
    suffix = "_arn" if cluster == "ClusterArn" else ""
    return [*_node(cluster, **more), {cluster: f"$shared{suffix}", "NodeId": "$free", **more}]


def _node(cluster: str = "ClusterName", **more: Any) -> list[Attack]:
    """One node; the cluster by whichever member names it."""
    suffix = "_arn" if cluster == "ClusterArn" else ""
    places = [("$cluster", "$node"), ("$shared", "$node"), ("$red", "$node"), ("$shared", "$held"), ("$red", "$held")]
    return [{cluster: f"{place}{suffix}", "NodeId": node, **more} for place, node in places]


_SETTING: Final = {"InstanceGroups": [group(_WORKERS, 1)]}
_RESOURCES: Final = ["$cluster_arn", "$scheduler_arn", "$quota_arn"]
_TAG: Final = {"Tags": [{"Key": "taken", "Value": "over"}]}
_JOBS: Final[list[Attack]] = [{"JobId": "$job"}, {"JobId": "$private"}]
_SAVED: Final[list[Attack]] = [{**job, "Step": SAVED} for job in _JOBS]
_CHECK: Final = {"InstanceGroupName": _WORKERS, "DeepHealthChecks": ["InstanceStress"]}
_FILE: Final = {"Name": "mine", "Command": ["python"], "WorkingDir": "/code", "Replicas": 1}

SAGEMAKER: Final[dict[str, list[Attack]]] = {
    "AddTags": [{"ResourceArn": arn, **_TAG} for arn in [*_RESOURCES, "$shared_arn"]],
    "AttachClusterNodeNetworkInterface": _changed(NetworkInterfaceId="eni-0123456789abcdef0"),
    "AttachClusterNodeVolume": [
        *_changed("ClusterArn", VolumeId="vol-0123456789abcdef0"),
        {"ClusterArn": "$red_arn", "NodeId": "$mine", "VolumeId": "$volume"},
    ],
    "BatchAddClusterNodes": [
        {"ClusterName": cluster, "NodesToAdd": [{"InstanceGroupName": _WORKERS, "IncrementTargetCountBy": 1}]}
        for cluster in ("$cluster", "$cluster_arn", "$shared")
    ],
    "BatchDeleteClusterNodes": _nodes(),
    "BatchRebootClusterNodes": _nodes(),
    "BatchReplaceClusterNodes": _nodes(),
    "CreateClusterSchedulerConfig": [
        {"Name": "mine", "ClusterArn": arn, "SchedulerConfig": SCHEDULING} for arn in ("$cluster_arn", "$shared_arn")
    ],
    "CreateComputeQuota": [
        {"Name": "mine", "ClusterArn": arn, "ComputeQuotaConfig": ALLOTTED, "ComputeQuotaTarget": {"TeamName": "red"}}
        for arn in ("$cluster_arn", "$shared_arn")
    ],
    "DeleteCluster": [*_OF_CLUSTER, {"ClusterName": "$shared"}],
    "DeleteClusterSchedulerConfig": [{"ClusterSchedulerConfigId": "$scheduler"}],
    "DeleteComputeQuota": [{"ComputeQuotaId": "$quota"}],
    "DeleteTags": [{"ResourceArn": arn, "TagKeys": ["plan"]} for arn in [*_RESOURCES, "$shared_arn"]],
    "DescribeCluster": _OF_CLUSTER,
    "DescribeClusterEvent": [
        {"ClusterName": cluster, "EventId": event}
        for cluster, event in [("$cluster", "$event"), ("$shared", "$event"), ("$red", "$event"), ("$shared", "$held_event")]
    ],
    "DescribeClusterNode": [
        *_node(),
        *({"ClusterName": cluster, "NodeLogicalId": "$logical"} for cluster in ("$cluster", "$shared", "$red")),
        {"ClusterName": "$shared", "NodeLogicalId": "$held_logical"},
    ],
    "DescribeClusterOperation": [
        {"ClusterName": cluster, "OperationId": "$operation"} for cluster in ("$cluster", "$shared", "$red")
    ],
    "DescribeClusterSchedulerConfig": [{"ClusterSchedulerConfigId": "$scheduler"}],
    "DescribeComputeQuota": [{"ComputeQuotaId": "$quota"}],
    "DetachClusterNodeVolume": [
        *_changed("ClusterArn", VolumeId="$volume"),
        {"ClusterArn": "$red_arn", "NodeId": "$mine", "VolumeId": "$volume"},
    ],
    "ListClusterEvents": [
        *_OF_CLUSTER,
        {"ClusterName": "$shared", "NodeId": "$held"},
        {"ClusterName": "$shared", "OperationId": "$operation"},
    ],
    "ListClusterNodes": [*_OF_CLUSTER, {"ClusterName": "$cluster", "IncludeNodeLogicalIds": True}],
    "ListClusterOperations": _OF_CLUSTER,
    "ListClusterSchedulerConfigs": [{"ClusterArn": "$cluster_arn"}],
    "ListComputeQuotas": [{"ClusterArn": "$cluster_arn"}],
    "ListTags": [{"ResourceArn": arn} for arn in _RESOURCES],
    "MoveClusterNodes": _moves(),
    "StartClusterHealthCheck": [
        {"ClusterName": cluster, "DeepHealthCheckConfigurations": [{**_CHECK, **which}]}
        for cluster, which in [
            ("$cluster", {}),
            ("$shared", {}),
            ("$shared", {"InstanceIds": ["$held"]}),
            ("$red", {"InstanceIds": ["$node"]}),
        ]
    ],
    "UpdateCluster": [{"ClusterName": cluster, **_SETTING} for cluster in ("$cluster", "$cluster_arn", "$shared")],
    "UpdateClusterSchedulerConfig": [{"ClusterSchedulerConfigId": "$scheduler", "TargetVersion": 1, "Description": "mine"}],
    "UpdateClusterSoftware": [{"ClusterName": cluster} for cluster in ("$cluster", "$cluster_arn", "$shared")],
    "UpdateComputeQuota": [{"ComputeQuotaId": "$quota", "TargetVersion": 1, "Description": "mine"}],
}
OWN: Final[dict[str, list[Attack]]] = {
    "CreateKey": [{"Name": "mine", "Team": "blue"}],
    "ClearFault": [{"FaultId": "$fault"}],
    "DeleteJobCheckpoint": _SAVED,
    "DescribeJobCheckpoint": _SAVED,
    "DescribeNodeHealth": _node(),
    "LabelClusterNode": _changed(Labels={"taken": "over"}),
    "ListNodeConditions": [{"ClusterName": "$cluster"}, {"ClusterName": "$cluster_arn"}, *_node()],
    "ResumeRepairs": [{"ClusterName": name, "InstanceGroupName": _WORKERS} for name in ("$cluster", "$shared")],
    "ExportJobCheckpoint": [{**saved, "Format": "dcp", **to} for saved in _SAVED for to in ({}, {"Target": "s3://of-red/exports"})],
    "DescribeJob": _JOBS,
    "GetJobLogs": _JOBS,
    "InjectFault": [
        *({"Kind": "kill-rank", "Target": target} for target in ("$job/0", "$private/0")),
        *({"Kind": "kill-node", "Target": target} for target in ("$node", "$held", "$free")),
    ],
    "GetGoodput": [*_JOBS, {"Cluster": "$cluster"}, {"Team": "blue"}],
    "ListEvents": [{"Cluster": "$cluster"}, *_JOBS],
    "ListFaults": _JOBS,
    "ListJobCheckpoints": _JOBS,
    "ListJobEvents": _JOBS,
    "ListJobSteps": _JOBS,
    "ListJobs": [{"Cluster": "$cluster"}, {"Cluster": "$cluster_arn"}],
    "PinJobCheckpoint": [{**saved, "Pinned": True} for saved in _SAVED],
    "RevokeKey": [{"KeyId": "$key"}, {"KeyId": "$token"}],
    "RotateKey": [{"KeyId": "$key"}, {"KeyId": "$token"}],
    "DeleteSpotPolicy": [{"Cluster": cluster} for cluster in ("$cluster", "$cluster_arn", "$shared")],
    "GetSpotSavings": [*_JOBS, {"Cluster": "$cluster"}],
    "ListSpotNotices": [{"Cluster": "$cluster"}],
    "ListSpotPolicies": [{"Cluster": "$cluster"}, {"Cluster": "$cluster_arn"}],
    "ListSparePools": [{"Cluster": "$cluster"}, {"Cluster": "$cluster_arn"}],
    "PutSparePool": [{"Cluster": cluster, "Nodes": 0} for cluster in ("$cluster", "$cluster_arn", "$shared")],
    "PutSpotPolicy": [{"Cluster": cluster, "FallbackGroups": []} for cluster in ("$cluster", "$cluster_arn", "$shared")],
    "ResizeJob": [{**job, "Replicas": 1} for job in _JOBS],
    "StopJob": _JOBS,
    "SubmitJob": [
        {**_FILE, "Cluster": "$cluster"},
        {**_FILE, "Cluster": "$shared", "Team": "blue"},
        {**_FILE, "Cluster": "$shared", "Checkpoint": {"Namespace": "$job"}},
    ],
    # What is the installation's is nobody's of a team, not even an admin's of one.
    "DeprecateImageRelease": [{"Version": "0.1.0"}],
    "RegisterImageRelease": [{"Version": "9.9.9"}],
    "SetAlarmState": [{"AlarmName": "hot", "State": "ALARM"}],
}
NAME_NOTHING: Final = {
    "CreateCluster": "the name of a new cluster; it is taken if another team's cluster has it",
    "ListAlarms": "alarms are the installation's",
    "ListAuditEvents": "filters by words, not by ids",
    "ListClusters": "filters by words, not by ids",
    "ListImageReleases": "image releases are the installation's",
    "ListKeys": "no id",
    "ListSpotPrices": "prices are the installation's",
}
"""Operations that take no id of anybody's, and why."""
