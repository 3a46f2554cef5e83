"""A host as a node's group and cluster wish for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.catalogue import instance_type
from models.cluster.table import Cluster, InstanceGroup
from models.node.table import Node
from workers.providers.base import Disk, HostSpec, Market, Site

MOUNT = "/opt/sagemaker"
"""Where HyperPod has the secondary volume of a group's nodes."""


def host_spec(cluster: Cluster, group: InstanceGroup, node: Node, *, boot_token: str) -> HostSpec:
    kind = instance_type(node.instance_type)
    return HostSpec(
        claim=node.id,
        instance_type=node.instance_type,
        vcpus=kind.vcpus,
        memory_mib=kind.memory_mib,
        boot_token=boot_token,
        tags={"everstep:cluster": cluster.name, "everstep:node": node.logical_id, "everstep:claim": node.id},
        image=node.image,
        start=node.starts,
        market=Market(node.capacity_type.value),
        sites=sites(cluster.settings, group.spec),
        disks=disks(group.spec),
        threads_per_core=group.spec.get("ThreadsPerCore"),
    )


def sites(settings: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[Site, ...]:
    """The subnets of the group, else those of its cluster, in the order in which they were named."""
    network = spec.get("OverrideVpcConfig") or settings.get("VpcConfig") or {}
    groups = tuple(network.get("SecurityGroupIds", ()))
    return tuple(Site(subnet, groups) for subnet in network.get("Subnets", ()))


def disks(spec: Mapping[str, Any]) -> tuple[Disk, ...]:
    """The volumes that come with each host. File systems of the network are mounted by the agent, and are none."""
    volumes = [config["EbsVolumeConfig"] for config in spec.get("InstanceStorageConfigs", ()) if config.get("EbsVolumeConfig")]
    return tuple(_disk(volume) for volume in volumes)


def _disk(volume: Mapping[str, Any]) -> Disk:
    is_root = bool(volume.get("RootVolume"))
    return Disk(
        gib=int(volume.get("VolumeSizeInGB") or 0),
        mount=None if is_root else MOUNT,
        kms_key=volume.get("VolumeKmsKeyId"),
        is_root=is_root,
    )
