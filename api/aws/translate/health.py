"""Deep health checks between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.operations.health import CheckWish, GroupCheck
from models.health.states import CheckKind


def read_start(members: Mapping[str, Any]) -> CheckWish:
    return CheckWish(members["ClusterName"], tuple(_read(group) for group in members["DeepHealthCheckConfigurations"]))


def _read(group: Mapping[str, Any]) -> GroupCheck:
    instance_ids = group.get("InstanceIds")
    return GroupCheck(
        group=group["InstanceGroupName"],
        kinds=tuple(dict.fromkeys(CheckKind(kind) for kind in group["DeepHealthChecks"])),
        instance_ids=None if instance_ids is None else tuple(instance_ids),
        wire=group,
    )
