"""Operations of health checks."""

from __future__ import annotations

from api.aws.table.kinds import Operation, Table, honoured
from api.aws.table.parts import under
from api.aws.translate import health as wire
from api.aws.translate.clusters import write_arn
from api.operations import health

_CONFIGURATIONS = "DeepHealthCheckConfigurations"

HEALTH: Table = {
    "StartClusterHealthCheck": Operation(
        wire.read_start,
        health.start,
        write_arn,
        note=(
            "Of every worker node, accelerated or not. One at a time for a cluster (ConflictException); meanwhile its nodes show DeepHealthCheckInProgress and take no "
            "new work, and UpdateCluster is refused. Running work is not disturbed: a node that is busy for 10 minutes is left out. A node that "
            "fails is replaced if NodeRecovery is Automatic, and takes no new work otherwise. ListClusterOperations has the operation."
        ),
        members={
            **honoured("ClusterName", _CONFIGURATIONS, *under(f"{_CONFIGURATIONS}[]", "InstanceGroupName")),
            **honoured(f"{_CONFIGURATIONS}[].InstanceIds", note="Left out: every node of the group that is in service."),
            **honoured(
                f"{_CONFIGURATIONS}[].DeepHealthChecks",
                note="InstanceStress: processors, memory and disk. InstanceConnectivity: bandwidth and round trips to the group's other nodes, over "
                "TCP. MultiNodeTrainingValidation: the nodes train a small model together, if they have torch.",
            ),
        },
    ),
}
