"""Instance groups between wire and use-case. Pure both ways.

A group's details do not have the shape of its specification: what can change in time is shown as it is and as it is wished for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from api.aws.translate.software import write_group_software
from api.aws.translate.states import GROUP_STATUS, SCALING, SERVING
from api.operations.clusters import GroupView
from models.cluster.changes import GroupSpec
from models.image.queries import Releases

AS_SENT: Final = (
    "InstanceGroupName",
    "InstanceType",
    "LifeCycleConfig",
    "ExecutionRole",
    "ThreadsPerCore",
    "InstanceStorageConfigs",
    "OnStartDeepHealthChecks",
    "OverrideVpcConfig",
    "ScheduledUpdateConfig",
    "SlurmConfig",
    "CapacityRequirements",
    "NetworkInterface",
    "EnvironmentConfig",
)
"""Members of a group that its details show under the name and in the shape in which its specification has them."""


def read_groups(members: Mapping[str, Any]) -> tuple[GroupSpec, ...]:
    """Both kinds of groups, each in the caller's order."""
    plain = (_read_group(group, is_restricted=False) for group in members.get("InstanceGroups", ()))
    restricted = (_read_group(group, is_restricted=True) for group in members.get("RestrictedInstanceGroups", ()))
    return (*plain, *restricted)


def write_group(view: GroupView, releases: Releases, *, is_continuous: bool) -> dict[str, Any]:
    """What both kinds of groups show; what restricted ones do not have is left out by the shape."""
    group, spec = view.group, view.group.spec
    is_short = group.state in SERVING and view.current_count != group.target_count
    is_scaling = is_continuous and (is_short or group.state in SCALING)
    return {
        **{name: spec[name] for name in AS_SENT if name in spec},
        **_write_types(view),
        "CurrentCount": view.current_count,
        "TargetCount": group.target_count,
        "MinCount": group.min_count if "MinInstanceCount" in spec else None,
        "Status": GROUP_STATUS[group.state],
        "AutoPatchConfig": _write_patching(view),
        "KubernetesConfig": write_kubernetes(spec.get("KubernetesConfig")),
        **write_group_software(group, releases, view.update, view.at_goal),
        "ActiveOperations": {"Scaling": 1} if is_scaling else None,
    }


def write_kubernetes(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Labels and taints, as they are and as they are wished for: nothing delays them here, so both are the same."""
    if config is None:
        return None
    return {f"{when}{member}": value for member, value in config.items() for when in ("Current", "Desired")}


def _read_group(group: Mapping[str, Any], *, is_restricted: bool) -> GroupSpec:
    requirements = group.get("InstanceRequirements", {}).get("InstanceTypes", ())
    return GroupSpec(
        name=group["InstanceGroupName"],
        instance_type=group.get("InstanceType") or next(iter(requirements), ""),
        count=group["InstanceCount"],
        min_count=group.get("MinInstanceCount", 0),
        spec=_storable(group),
        is_restricted=is_restricted,
    )


def _storable(value: Any) -> Any:
    """A specification is kept as JSON, which has no word for a moment."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: _storable(item) for name, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list) else value


def _write_types(view: GroupView) -> dict[str, Any]:
    """A flexible group shows its types as they are wished for, as they were last in service, and what its nodes are of."""
    requirements = view.group.spec.get("InstanceRequirements")
    if requirements is None:
        return {}
    desired = requirements["InstanceTypes"]
    return {
        "InstanceRequirements": {
            "CurrentInstanceTypes": _settled(view).get("InstanceRequirements", {}).get("InstanceTypes", desired),
            "DesiredInstanceTypes": desired,
        },
        "InstanceTypeDetails": [
            {
                "InstanceType": name,
                "CurrentCount": view.current_types.get(name, 0),
                "ThreadsPerCore": view.group.spec.get("ThreadsPerCore"),
            }
            for name in desired
        ],
    }


def _write_patching(view: GroupView) -> dict[str, Any] | None:
    config = view.group.spec.get("AutoPatchConfig")
    if config is None:
        return None
    before = _settled(view).get("AutoPatchConfig", config)
    shown = {name: value for name, value in config.items() if name != "PatchSchedule"}
    for when, schedule in (("Current", before.get("PatchSchedule")), ("Desired", config.get("PatchSchedule"))):
        if schedule is not None:
            shown[f"{when}PatchSchedule"] = {name: datetime.fromisoformat(moment) for name, moment in schedule.items()}
    set_by_us = view.group.patching.get("patch_at")
    if set_by_us is not None:
        shown["CurrentPatchSchedule"] = {"NextPatchDate": datetime.fromisoformat(set_by_us)}
    return shown


def _settled(view: GroupView) -> Mapping[str, Any]:
    """The specification with which the group was last in service; the present one before the first time."""
    settled: Mapping[str, Any] = (view.group.settled or {"spec": view.group.spec})["spec"]
    return settled
