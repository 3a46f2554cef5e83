"""Node software between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.aws.translate.states import write_freshness
from api.operations.software import SoftwareWish
from models.cluster.seen import SeenGroup
from models.image.queries import Releases
from models.node.table import Node
from models.software.states import AT_WORK, UpdateState
from models.software.table import GroupUpdate

UPDATE_STATUS: Final[dict[UpdateState, str]] = {
    UpdateState.PENDING: "Pending",
    UpdateState.IN_PROGRESS: "InProgress",
    UpdateState.SUCCEEDED: "Succeeded",
    UpdateState.ROLLING_BACK: "RollbackInProgress",
    UpdateState.ROLLED_BACK: "RollbackComplete",
    UpdateState.FAILED: "Failed",
}


def read_update(members: Mapping[str, Any]) -> SoftwareWish:
    return SoftwareWish(
        cluster=members["ClusterName"],
        groups=tuple((group["InstanceGroupName"], group.get("ImageReleaseVersion")) for group in members.get("InstanceGroups", ())),
        image_id=members.get("ImageId"),
        deployment=members.get("DeploymentConfig", {}),
    )


def write_group_software(group: SeenGroup, known: Releases, update: GroupUpdate | None, at_goal: int) -> dict[str, Any]:
    """What a group's details say about its software; ``at_goal`` nodes run what the group wants, ``update`` is its newest one."""
    shown: dict[str, Any] = {
        **_images(known, "Current", group.image),
        **_images(known, "Desired", group.image_wanted),
        "ImageVersionStatus": write_freshness(known.freshness(group.image)),
    }
    if update is None:
        return shown
    shown["SoftwareUpdateStatus"] = UPDATE_STATUS[update.state]
    if update.state in AT_WORK:
        shown["TargetStateCount"] = at_goal
        shown["ActiveSoftwareUpdateConfig"] = update.deployment or None
    return shown


def write_node_software(node: Node, wanted: str | None, known: Releases) -> dict[str, Any]:
    """What a node's details say about its software; ``wanted`` is what its group wants."""
    return {
        **_images(known, "Current", node.image),
        **_images(known, "Desired", wanted),
        "ImageVersionStatus": write_freshness(known.freshness(node.image)),
        "LastSoftwareUpdateTime": node.software_at,
    }


def _images(known: Releases, when: str, version: str | None) -> dict[str, Any]:
    release = known.by_version.get(version or "")
    image_id = None if release is None else release.image_id
    return {f"{when}ImageId": image_id, f"{when}ImageReleaseVersion": version}
