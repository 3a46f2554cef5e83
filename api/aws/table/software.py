"""Operations of node software."""

from __future__ import annotations

from api.aws.table.kinds import Operation, Table, honoured
from api.aws.table.parts import DEPLOYMENT, whole
from api.aws.translate import software as wire
from api.aws.translate.clusters import write_arn
from api.operations import software

SOFTWARE: Table = {
    "UpdateClusterSoftware": Operation(
        wire.read_update,
        software.update,
        write_arn,
        note=(
            "Groups go to their release side by side, each in its batches. Nodes keep their ids; their jobs leave first, and lifecycle scripts run "
            "again. A node that comes to nothing on the new release, or an alarm that rings, takes all groups of the update back. Where every node "
            "runs the release already nothing is started."
        ),
        members={
            **honoured("ClusterName"),
            **honoured("InstanceGroups", "InstanceGroups[].InstanceGroupName", note="Left out: every group."),
            **honoured(
                "InstanceGroups[].ImageReleaseVersion", note="A registered release; left out: the newest of the group's image."
            ),
            **honoured(
                *(f"DeploymentConfig.{name}" for name in DEPLOYMENT if name.startswith("RollingUpdatePolicy")),
                note="With either orchestrator. Left out: all nodes of a group at once, forth and back. A percentage is rounded up; the types of a "
                "flexible group are taken in proportion.",
            ),
            **honoured(
                *(name for name in whole("DeploymentConfig", "WaitIntervalInSeconds")),
                note="Also after the last batch, while the alarms are watched.",
            ),
            **honoured(
                *(f"DeploymentConfig.{name}" for name in DEPLOYMENT if name.startswith("AutoRollback")),
                note="Alarms are set by SetAlarmState; one that nobody has set is quiet.",
            ),
            **honoured(
                "ImageId", note="'default', or an image of which a release was registered; groups on an image of their own need it."
            ),
        },
    ),
}
