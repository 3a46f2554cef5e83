"""What a specification must hold beyond the service model: nothing may contradict itself, or miss what it needs beside it.

Members go by their wire names here, as they are stored. The first that is wrong is named, with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from api.operations import tiers
from api.operations.software import check_deployment
from models.catalogue import instance_type
from models.cluster.changes import GroupSpec
from models.errors import Invalid, NotFound, Unsupported
from models.schedule import check_schedule

CONTROLLER: Final = "Controller"
_IDLE: Final = ("WhenIdle", "WhenAllIdle")


@dataclass(frozen=True)
class Specification:
    """A cluster as it would be: ``groups`` are those which are asked for, ``others`` those that stay as they are.

    ``schedules`` are kept from before: their last time may have come and gone.
    """

    is_continuous: bool
    settings: Mapping[str, Any]
    groups: Sequence[GroupSpec]
    others: Sequence[GroupSpec] = ()
    schedules: frozenset[str] = frozenset()

    @property
    def orchestrator(self) -> Mapping[str, Any]:
        given: Mapping[str, Any] = self.settings.get("Orchestrator", {})
        return given

    @property
    def is_on_eks(self) -> bool:
        return "Eks" in self.orchestrator


def check_specification(wish: Specification, *, now: datetime) -> None:
    """Raises Invalid or Unsupported."""
    refuse_repeated("InstanceGroups", (group.name for group in wish.groups))
    _check_settings(wish)
    for group in wish.groups:
        _check_types(group, is_continuous=wish.is_continuous)
        _check_counts(group, is_continuous=wish.is_continuous)
        _check_volumes(group)
        _check_lifecycle(group)
        _check_updates(group, wish.schedules, now)
        _check_place(group, wish)
        _check_slurm_role(group, wish)
    _check_controllers([*wish.groups, *wish.others])


def refuse_repeated(member: str, names: Iterable[str]) -> None:
    """Raises Invalid."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Invalid(message=f"{member} names '{name}' twice; instance groups are identified by their names.")
        seen.add(name)


def check_controller_stays(before: Sequence[GroupSpec], after: Sequence[GroupSpec]) -> None:
    """Slurm does without its controller at no time. Raises Invalid."""
    if _controllers(before) and not _controllers(after):
        name = _controllers(before)[0].name
        raise Invalid(
            message=f"Instance group '{name}' is the {CONTROLLER} of Slurm, which the cluster cannot do without: "
            f"name another group with SlurmConfig.NodeType {CONTROLLER} in the same call, or leave this one as it is."
        )


def _check_settings(wish: Specification) -> None:
    settings = wish.settings
    if "Orchestrator" in settings and len(wish.orchestrator) != 1:
        raise Invalid(message="Orchestrator must contain exactly one of Eks and Slurm.")
    if wish.is_on_eks and "VpcConfig" not in settings:
        raise Invalid(message="VpcConfig is required for a cluster whose Orchestrator is Eks.")
    if wish.is_continuous and "SlurmConfigStrategy" in wish.orchestrator.get("Slurm", {}):
        raise Invalid(
            message="Orchestrator.Slurm.SlurmConfigStrategy is not supported with NodeProvisioningMode Continuous. Leave it out."
        )
    least = tiers.LEAST_PERCENT
    if settings.get(tiers.SETTING, {}).get("InstanceMemoryAllocationPercentage", least) < least:
        raise Invalid(message=f"TieredStorageConfig.InstanceMemoryAllocationPercentage must be between {least} and 100.")
    if settings.get("AutoScaling", {}).get("Mode") == "Enable":
        needed = {"NodeProvisioningMode Continuous": wish.is_continuous, "Orchestrator.Eks": wish.is_on_eks}
        needed["ClusterRole"] = "ClusterRole" in settings
        missing = [name for name, is_there in needed.items() if not is_there]
        if missing:
            raise Invalid(message=f"AutoScaling with Mode Enable needs {', '.join(missing)}.")
    is_restricted = any(group.is_restricted for group in (*wish.groups, *wish.others))
    if "RestrictedInstanceGroupsConfig" in settings and not is_restricted:
        raise Invalid(message="RestrictedInstanceGroupsConfig needs a group in RestrictedInstanceGroups.")


def _check_types(group: GroupSpec, *, is_continuous: bool) -> None:
    given = [member for member in ("InstanceType", "InstanceRequirements") if member in group.spec]
    if len(given) != 1:
        raise Invalid(message=f"{_of(group)} needs exactly one of InstanceType and InstanceRequirements.")
    if "InstanceRequirements" in given:
        if not is_continuous:
            raise Invalid(message=f"InstanceRequirements of {_of(group)} needs a cluster whose NodeProvisioningMode is Continuous.")
        types = group.spec["InstanceRequirements"]["InstanceTypes"]
        if len(set(types)) < len(types):
            raise Invalid(message=f"InstanceRequirements.InstanceTypes of {_of(group)} names a type twice.")
    for name in group.types:
        try:
            instance_type(name)
        except NotFound as error:
            raise Unsupported(
                member=f"InstanceType {name} of {_of(group)}", remedy="Choose a type that the catalogue of instance types lists."
            ) from error


def _check_counts(group: GroupSpec, *, is_continuous: bool) -> None:
    if "MinInstanceCount" in group.spec and not is_continuous:
        raise Invalid(message=f"MinInstanceCount of {_of(group)} needs a cluster whose NodeProvisioningMode is Continuous.")
    if group.min_count > group.count:
        raise Invalid(
            message=f"MinInstanceCount of {_of(group)} is {group.min_count}; it must not exceed its InstanceCount, {group.count}."
        )
    if len(group.spec.get("CapacityRequirements", {})) > 1:
        raise Invalid(message=f"CapacityRequirements of {_of(group)} must contain one of Spot and OnDemand, not both.")


def _check_volumes(group: GroupSpec) -> None:
    roots = seconds = 0
    for config in group.spec.get("InstanceStorageConfigs", ()):
        volume = config.get("EbsVolumeConfig")
        if volume is None:
            continue
        if not volume.get("RootVolume", False):
            seconds += 1
            continue
        roots += 1
        if "VolumeSizeInGB" in volume or "VolumeKmsKeyId" not in volume:
            raise Invalid(
                message=f"EbsVolumeConfig of {_of(group)} with RootVolume true takes a VolumeKmsKeyId and no VolumeSizeInGB."
            )
    if roots > 1 or seconds > 1:
        raise Invalid(message=f"InstanceStorageConfigs of {_of(group)} may hold one root volume and one secondary volume at most.")


def _check_lifecycle(group: GroupSpec) -> None:
    config = group.spec.get("LifeCycleConfig")
    if config is None:
        return
    has_script = "OnCreate" in config or "OnInitComplete" in config
    if has_script != ("SourceS3Uri" in config):
        raise Invalid(
            message=f"LifeCycleConfig of {_of(group)} needs both SourceS3Uri and a script, OnCreate or OnInitComplete: "
            "the script is a file below the URI."
        )


def _check_updates(group: GroupSpec, known: frozenset[str], now: datetime) -> None:
    for member in ("ScheduledUpdateConfig", "AutoPatchConfig"):
        check_deployment(group.spec.get(member, {}).get("DeploymentConfig", {}), where=f"{member}.DeploymentConfig of {_of(group)}")
    schedule = group.spec.get("ScheduledUpdateConfig", {}).get("ScheduleExpression")
    if schedule is not None and schedule not in known:
        check_schedule(schedule, where=f"ScheduledUpdateConfig.ScheduleExpression of {_of(group)}", now=now)
    patching = group.spec.get("AutoPatchConfig")
    if patching is None:
        return
    strategy = patching["PatchingStrategy"]
    if "IdleWaitWindowInSeconds" in patching and strategy not in _IDLE:
        raise Invalid(
            message=f"AutoPatchConfig.IdleWaitWindowInSeconds of {_of(group)} needs PatchingStrategy WhenIdle or WhenAllIdle."
        )
    if "DrainPolicy" in patching and strategy != "DrainFirst":
        raise Invalid(message=f"AutoPatchConfig.DrainPolicy of {_of(group)} needs PatchingStrategy DrainFirst.")


def _check_place(group: GroupSpec, wish: Specification) -> None:
    if "OverrideVpcConfig" in group.spec and "VpcConfig" not in wish.settings:
        raise Invalid(message=f"OverrideVpcConfig of {_of(group)} needs a VpcConfig of the cluster to override.")


def _check_slurm_role(group: GroupSpec, wish: Specification) -> None:
    is_named = "SlurmConfig" in group.spec
    if is_named and wish.is_on_eks:
        raise Invalid(message=f"SlurmConfig of {_of(group)} does not go with Orchestrator.Eks.")
    if wish.is_continuous and "Slurm" in wish.orchestrator and not is_named and not group.is_restricted:
        raise Invalid(message=f"SlurmConfig of {_of(group)} is missing: a Continuous cluster with Slurm needs it in every group.")


def _check_controllers(groups: Sequence[GroupSpec]) -> None:
    controllers = _controllers(groups)
    if len(controllers) > 1:
        raise Invalid(
            message=f"SlurmConfig.NodeType {CONTROLLER} is for one instance group; it is that of "
            f"{', '.join(group.name for group in controllers)}."
        )
    if controllers and controllers[0].count != 1:
        raise Invalid(message=f"InstanceCount of {_of(controllers[0])} must be 1: it is the {CONTROLLER} of Slurm.")


def _controllers(groups: Sequence[GroupSpec]) -> list[GroupSpec]:
    return [group for group in groups if group.spec.get("SlurmConfig", {}).get("NodeType") == CONTROLLER]


def _of(group: GroupSpec) -> str:
    return f"instance group '{group.name}'"
