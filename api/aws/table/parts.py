"""Names of members below structures that several operations have, so that a table can tell of them in one word each."""

from __future__ import annotations

from typing import Final

VPC: Final = ("SecurityGroupIds", "Subnets")
_BATCHES: Final = tuple(
    name for policy in ("MaximumBatchSize", "RollbackMaximumBatchSize") for name in (policy, f"{policy}.Type", f"{policy}.Value")
)
DEPLOYMENT: Final = (
    "RollingUpdatePolicy",
    *(f"RollingUpdatePolicy.{name}" for name in _BATCHES),
    "WaitIntervalInSeconds",
    "AutoRollbackConfiguration",
    "AutoRollbackConfiguration[].AlarmName",
)
"""Of a DeploymentConfiguration."""
TAG: Final = ("Tags", "Tags[].Key", "Tags[].Value")
PAGE: Final = ("MaxResults", "NextToken")
ORDER: Final = ("SortBy", "SortOrder")
CREATED: Final = ("CreationTimeAfter", "CreationTimeBefore")
VOLUME: Final = ("VolumeSizeInGB", "VolumeKmsKeyId", "RootVolume")
FILE_SYSTEM: Final = ("DnsName", "MountName", "MountPath")
LUSTRE: Final = ("SizeInGiB", "PerUnitStorageThroughput")


def under(prefix: str, *names: str) -> tuple[str, ...]:
    """These members, by their paths below another one."""
    return tuple(f"{prefix}.{name}" for name in names)


def whole(member: str, *names: str) -> tuple[str, ...]:
    """A member and these below it."""
    return (member, *under(member, *names))
