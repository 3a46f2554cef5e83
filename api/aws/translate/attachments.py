"""Volumes and interfaces of nodes between wire and use-case. Pure both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.operations.attachments import AttachmentView, AttachmentWish
from models.volume.states import AttachmentState

VOLUME_STATUS: Final[dict[AttachmentState, str]] = {
    AttachmentState.ATTACHING: "attaching",
    AttachmentState.BUSY: "busy",
    AttachmentState.ATTACHED: "attached",
    AttachmentState.DETACHING: "detaching",
    AttachmentState.DETACHED: "detached",
}


def read_volume(members: Mapping[str, Any]) -> AttachmentWish:
    return AttachmentWish(members["ClusterArn"], members["NodeId"], members["VolumeId"])


def write_volume(view: AttachmentView) -> dict[str, Any]:
    return {
        "ClusterArn": view.cluster.arn,
        "NodeId": view.node.instance_id,
        "VolumeId": view.attachment.resource_id,
        "AttachTime": view.attachment.created_at,
        "Status": VOLUME_STATUS[view.attachment.state],
        "DeviceName": view.attachment.device,
    }


def read_interface(members: Mapping[str, Any]) -> AttachmentWish:
    return AttachmentWish(members["ClusterName"], members["NodeId"], members["NetworkInterfaceId"])


def write_interface(view: AttachmentView) -> dict[str, Any]:
    return {
        "ClusterArn": view.cluster.arn,
        "NodeId": view.node.instance_id,
        "NetworkInterfaceId": view.attachment.resource_id,
        "AttachmentId": view.attachment.id,
    }
