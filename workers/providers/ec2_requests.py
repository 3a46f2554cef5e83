"""What EC2 is asked for, and what it answers, in our words. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.providers.base import HostSeen, HostSpec, Market, Refused, Site, Volume
from workers.providers.ec2_options import Ec2Options

CLAIM, PLANE = "everstep:claim", "everstep:plane"
START, STARTED = "everstep:start", "everstep:started"
"""The start that an instance is to come up with, which it reads of itself; and the one that has been carried out."""
IMAGE = "everstep:image"
BUNDLE = "everstep:bundle"
"""The checksum of the agent's bundle, which an instance compares with what it fetches: its user data stay, releases change."""
_OURS = frozenset({PLANE, START, STARTED, IMAGE, BUNDLE})
_LETTERS = "fghijklmnop"
"""``/dev/sdf`` to ``/dev/sdp``: what EC2 leaves to its users."""
_ALIVE = frozenset({"pending", "running"})
_TAGGED = ("instance", "volume", "network-interface")
_METADATA = {
    "HttpTokens": "required",
    "HttpEndpoint": "enabled",
    "HttpPutResponseHopLimit": 2,
    "InstanceMetadataTags": "enabled",
}
"""Its tags tell an instance which start it is; the hop limit lets containers ask for credentials."""
ENDED = "terminated"
GOING = frozenset({"shutting-down", ENDED})
_LISTED = ["pending", "running", "shutting-down", "stopping", "stopped"]
"""All but those that have ended, which EC2 shows for an hour."""


@dataclass(frozen=True)
class Processor:
    """The threads of a type, as EC2 describes it."""

    cores: int
    threads: tuple[int, ...]
    threads_by_default: int


def ec2_type(instance_type: str) -> str:
    """``ml.p5.48xlarge`` → ``p5.48xlarge``."""
    return instance_type.removeprefix("ml.")


def token(plane: str, claim: str, turn: int) -> str:
    """The client token of a claim, 64 characters at most. Always the same until a turn has come to nothing for sure."""
    digest = hashlib.sha256(f"{plane} {claim}".encode()).hexdigest()
    return f"{digest[:48]}-{turn}"


def tags(spec: HostSpec, plane: str) -> dict[str, str]:
    """Everything that is told to EC2 of a host; nothing secret."""
    told = {**spec.tags, CLAIM: spec.claim, PLANE: plane, START: str(spec.start), STARTED: str(spec.start)}
    return told if spec.image is None else {**told, IMAGE: spec.image}


def as_pairs(named: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(named.items())]


def mine(plane: str, claim: str | None = None, instance_id: str | None = None) -> list[dict[str, Any]]:
    """The filter that finds what this control plane launched and has not ended, and nothing else."""
    wanted: list[dict[str, Any]] = [
        {"Name": f"tag:{PLANE}", "Values": [plane]},
        {"Name": "instance-state-name", "Values": _LISTED},
    ]
    if claim is not None:
        wanted.append({"Name": f"tag:{CLAIM}", "Values": [claim]})
    if instance_id is not None:
        wanted.append({"Name": "instance-id", "Values": [instance_id]})
    return wanted


def launch(
    spec: HostSpec,
    site: Site,
    options: Ec2Options,
    *,
    user_data: bytes,
    root: str | None,
    processor: Processor | None,
    checksum: Mapping[str, str],
) -> dict[str, Any]:
    """The parameters of RunInstances but for the client token. ``root`` is the name of the image's root device, if a disk asks for it.

    ``checksum`` is the tag ``BUNDLE``, if it is known.

    Raises:
        Refused: the type does not run with so many threads a core.
    """
    market = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}}
    wish = {
        "InstanceType": ec2_type(spec.instance_type),
        "ImageId": options.image(spec.image),
        "LaunchTemplate": _template(options.launch_template),
        "IamInstanceProfile": _profile(options.instance_profile),
        "SubnetId": site.subnet,
        "SecurityGroupIds": list(site.security_groups),
        "Placement": {"AvailabilityZone": site.zone} if site.zone and not site.subnet else None,
        "BlockDeviceMappings": _disks(spec, root),
        "CpuOptions": _threads(spec, processor),
        "InstanceMarketOptions": market if spec.market is Market.SPOT else None,
    }
    labels = as_pairs({**tags(spec, options.plane), **checksum})
    return {name: value for name, value in wish.items() if value} | {
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": user_data,
        "MetadataOptions": _METADATA,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [{"ResourceType": kind, "Tags": labels} for kind in _TAGGED],
    }


def _template(named: str | None) -> dict[str, str] | None:
    """``NAME``, ``lt-…``, either with ``:VERSION``."""
    if named is None:
        return None
    name, _, version = named.partition(":")
    member = "LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName"
    return {member: name, "Version": version or "$Default"}


def _profile(named: str | None) -> dict[str, str] | None:
    if named is None:
        return None
    return {"Arn": named} if named.startswith("arn:") else {"Name": named}


def _disks(spec: HostSpec, root: str | None) -> list[dict[str, Any]]:
    found, letters = [], iter(_LETTERS)
    for disk in spec.disks:
        volume: dict[str, Any] = {"DeleteOnTermination": True, "VolumeType": "gp3"}
        if disk.gib:
            volume["VolumeSize"] = disk.gib
        if disk.kms_key:
            volume |= {"Encrypted": True, "KmsKeyId": disk.kms_key}
        found.append({"DeviceName": root if disk.is_root and root else f"/dev/sd{next(letters)}", "Ebs": volume})
    return found


def _threads(spec: HostSpec, processor: Processor | None) -> dict[str, int] | None:
    wanted = spec.threads_per_core
    if wanted is None or processor is None or wanted == processor.threads_by_default:
        return None
    if wanted not in processor.threads:
        message = f"ThreadsPerCore is {wanted}; {spec.instance_type} runs with {' or '.join(map(str, processor.threads))}."
        raise Refused(message)
    return {"CoreCount": processor.cores, "ThreadsPerCore": wanted}


def seen(instance: Mapping[str, Any]) -> HostSeen:
    """An instance of ours as the port knows a host. What is attached is what does not go with it."""
    told = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    volumes = (
        Volume(mapping["Ebs"]["VolumeId"], mapping["DeviceName"])
        for mapping in instance.get("BlockDeviceMappings", ())
        if not mapping.get("Ebs", {}).get("DeleteOnTermination", True) and mapping["DeviceName"] != instance.get("RootDeviceName")
    )
    return HostSeen(
        claim=told.get(CLAIM, ""),
        instance_id=instance["InstanceId"],
        address=instance.get("PrivateIpAddress"),
        is_alive=instance["State"]["Name"] in _ALIVE,
        tags={name: value for name, value in told.items() if name not in _OURS},
        image=told.get(IMAGE),
        start=int(told.get(STARTED, "0")),
        volumes=tuple(sorted(volumes, key=lambda volume: volume.device)),
        interfaces=tuple(one["NetworkInterfaceId"] for one in _interfaces(instance)),
        instance_type=f"ml.{instance['InstanceType']}",
        market=Market.SPOT if instance.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        zone=instance.get("Placement", {}).get("AvailabilityZone"),
    )


def _interfaces(instance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """But for those that it was launched with."""
    attached = [one for one in instance.get("NetworkInterfaces", ()) if one.get("Attachment", {}).get("DeviceIndex", 0) > 0]
    return sorted(attached, key=lambda one: str(one["NetworkInterfaceId"]))


def free_index(instance: Mapping[str, Any]) -> int:
    """The next index for a network interface."""
    taken = {one.get("Attachment", {}).get("DeviceIndex", 0) for one in instance.get("NetworkInterfaces", ())}
    return next(index for index in range(len(taken) + 1) if index not in taken)


def oldest_first(instances: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The order in which several instances of one claim came up: the first is its host, the others are extra."""
    return sorted(instances, key=lambda instance: (instance["LaunchTime"], instance["InstanceId"]))
