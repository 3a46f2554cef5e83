"""What of a specification is refused because nothing here would act on it: better a clear no than a silent nothing.

``docs/wire.md`` is generated from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from models.errors import Invalid, Unsupported

CLUSTER: Final = {
    "RestrictedInstanceGroupsConfig": "Leave it out.",
    "AutoScaling": "Scale with UpdateCluster.",
}
"""Members of CreateCluster and UpdateCluster, with what to do instead."""

GROUP: Final = {
    "InstanceRequirements": "Give one InstanceType.",
    "TrainingPlanArn": "Leave it out: capacity comes from the provider.",
    "OnStartDeepHealthChecks": "Leave it out.",
    "ScheduledUpdateConfig": "Leave it out: nothing is patched on a schedule.",
    "AutoPatchConfig": "Leave it out: nothing is patched by itself.",
    "ImageReleaseVersion": "Leave it out: the provider's image is used.",
}
"""Members of an instance group's specification."""

RECORDED: Final = {
    "ExecutionRole": "nothing: there is no IAM here",
    "ThreadsPerCore": "nothing yet",
    "InstanceStorageConfigs": "nothing yet; EbsVolumeConfig only",
    "OverrideVpcConfig": "nothing yet, as of the cluster's VpcConfig",
    "NetworkInterface": "nothing yet",
    "CapacityRequirements": "shown as CapacityType of a node; Spot capacity is not treated otherwise yet",
    "KubernetesConfig": "shown by DescribeClusterNode, for whoever runs Kubernetes on the nodes",
    "SlurmConfig": "nothing yet: it names the role of the nodes for whoever runs Slurm on them",
    "ImageId": "nothing; 'default' only",
}
"""Members that come back from DescribeCluster as they were sent, and what becomes of them otherwise."""

RESTRICTED = (
    "Found RestrictedInstanceGroups in the cluster input. Please remove RestrictedInstanceGroups from the request and try again."
)


def check_cluster(members: Mapping[str, Any]) -> None:
    """Raises Unsupported or Invalid for the first member that cannot be honoured."""
    if "RestrictedInstanceGroups" in members:
        raise Invalid(message=RESTRICTED)
    for member, remedy in CLUSTER.items():
        if member in members:
            raise Unsupported(member=member, remedy=remedy)
    if members.get("TieredStorageConfig", {}).get("Mode") == "Enable":
        raise Unsupported(member="TieredStorageConfig with Mode Enable", remedy="Leave it out, or send Mode Disable.")
    _check_orchestrator(members.get("Orchestrator"))
    for group in members.get("InstanceGroups", ()):
        _check_group(group)


def _check_orchestrator(orchestrator: Mapping[str, Any] | None) -> None:
    if orchestrator is None:
        return
    if len(orchestrator) != 1:
        raise Invalid(message="Orchestrator must contain exactly one of Eks and Slurm.")
    for member in orchestrator.get("Slurm", {}):
        raise Unsupported(member=f"Orchestrator.Slurm.{member}", remedy="Leave it out.")


def _check_group(group: Mapping[str, Any]) -> None:
    where = f"of instance group '{group['InstanceGroupName']}'"
    if "InstanceType" in group and "InstanceRequirements" in group:
        raise Invalid(message=f"InstanceType and InstanceRequirements {where} exclude each other.")
    for member, remedy in GROUP.items():
        if member in group:
            raise Unsupported(member=f"{member} {where}", remedy=remedy)
    if "InstanceType" not in group:
        raise Invalid(
            message=f"InstanceType {where} is missing: a group needs exactly one of InstanceType and InstanceRequirements."
        )
    if group.get("ImageId", "default") != "default":
        raise Unsupported(member=f"ImageId {group['ImageId']} {where}", remedy="Send 'default', or leave it out.")
    if len(group.get("CapacityRequirements", {})) > 1:
        raise Invalid(message=f"CapacityRequirements {where} must contain one of Spot and OnDemand, not both.")
    _check_lifecycle(group.get("LifeCycleConfig"), where)
    _check_storage(group.get("InstanceStorageConfigs", ()), where)


def _check_lifecycle(config: Mapping[str, Any] | None, where: str) -> None:
    if config is None:
        return
    if "OnInitComplete" in config:
        raise Unsupported(member=f"LifeCycleConfig.OnInitComplete {where}", remedy="Use OnCreate.")
    if ("OnCreate" in config) != ("SourceS3Uri" in config):
        raise Invalid(message=f"LifeCycleConfig {where} needs both SourceS3Uri and OnCreate: the script is a file below the URI.")


def _check_storage(configs: Any, where: str) -> None:
    roots = seconds = 0
    for config in configs:
        (kind,) = config
        if kind != "EbsVolumeConfig":
            raise Unsupported(member=f"InstanceStorageConfigs.{kind} {where}", remedy="Mount file systems in the lifecycle script.")
        volume = config[kind]
        if not volume.get("RootVolume", False):
            seconds += 1
            continue
        roots += 1
        if "VolumeSizeInGB" in volume or "VolumeKmsKeyId" not in volume:
            raise Invalid(message=f"EbsVolumeConfig {where} with RootVolume true takes a VolumeKmsKeyId and no VolumeSizeInGB.")
    if roots > 1 or seconds > 1:
        raise Invalid(message=f"InstanceStorageConfigs {where} may hold one root volume and one secondary volume at most.")
