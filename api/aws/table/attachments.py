"""Operations on what is attached to a node."""

from __future__ import annotations

from api.aws.table.kinds import Operation, Table, honoured
from api.aws.translate import attachments as wire
from api.operations import attachments

_VOLUME = honoured("ClusterArn", "NodeId", "VolumeId")

ATTACHMENTS: Table = {
    "AttachClusterNodeVolume": Operation(
        wire.read_volume,
        attachments.attach_volume,
        wire.write_volume,
        note=(
            "Clusters with Eks, in service; not restricted groups. A volume of the local provider is a directory that outlives its nodes, made when "
            "it does not exist; EVERSTEP_VOLUMES names the directory in which a node's scripts and jobs find it, by its id and by its device's name. "
            "Asked again, it answers how the attachment is by then. A volume that another node has is refused with ValidationException."
        ),
        members=_VOLUME,
    ),
    "DetachClusterNodeVolume": Operation(
        wire.read_volume,
        attachments.detach_volume,
        wire.write_volume,
        note="ResourceNotFound unless the volume is attached to the node, or on its way. It ends by itself with its node's instance.",
        members=_VOLUME,
    ),
    "AttachClusterNodeNetworkInterface": Operation(
        wire.read_interface,
        attachments.attach_interface,
        wire.write_interface,
        note=(
            "For as long as the instance lives; fifteen a node. The local provider notes the interface as taken and sets nothing up for it. Asked "
            "again, it answers the same AttachmentId."
        ),
        members=honoured("ClusterName", "NodeId", "NetworkInterfaceId"),
    ),
}
