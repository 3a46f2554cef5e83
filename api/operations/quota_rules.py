"""What a compute quota may say, beyond what the service model asks: which amounts go together, and which an instance type can have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.catalogue import InstanceType, instance_type
from models.errors import Invalid, NotFound, Unsupported
from models.quota.profiles import PROFILES

AMOUNTS = ("Accelerators", "AcceleratorPartition", "VCpu", "MemoryInGiB")
"""Parts of instances. Instances as a whole are told by Count."""
MOST_BORROWED = 500


def check_config(config: Mapping[str, Any]) -> None:
    """Checks a ComputeQuotaConfig.

    Raises:
        Invalid: it contradicts itself, or asks for what no instance of that type has.
        Unsupported: the catalogue has no such instance type.
    """
    _check_resources("ComputeQuotaResources", config.get("ComputeQuotaResources", ()))
    sharing = config.get("ResourceSharingConfig")
    if sharing is not None:
        _check_sharing(sharing)


def _check_sharing(sharing: Mapping[str, Any]) -> None:
    strategy = sharing["Strategy"]
    for member in ("BorrowLimit", "AbsoluteBorrowLimits"):
        if member in sharing and strategy != "LendAndBorrow":
            raise Invalid(message=f"{member} needs the Strategy LendAndBorrow; with {strategy} nothing is borrowed. Leave it out.")
    limit = sharing.get("BorrowLimit", 1)
    if not 1 <= limit <= MOST_BORROWED:
        raise Invalid(message=f"BorrowLimit is {limit}; it must be from 1 to {MOST_BORROWED} percent.")
    _check_resources("AbsoluteBorrowLimits", sharing.get("AbsoluteBorrowLimits", ()))


def _check_resources(member: str, resources: Sequence[Mapping[str, Any]]) -> None:
    seen: set[tuple[str, str | None]] = set()
    for resource in resources:
        where = f"{member} of {resource['InstanceType']}"
        _check_resource(where, resource)
        kind = (resource["InstanceType"], resource.get("AcceleratorPartition", {}).get("Type"))
        if kind in seen:
            raise Invalid(message=f"{where} is given twice. Only different partitions of one type may be listed apart.")
        seen.add(kind)


def _check_resource(where: str, resource: Mapping[str, Any]) -> None:
    parts = [amount for amount in AMOUNTS if amount in resource]
    if "Count" in resource and parts:
        raise Invalid(message=f"{where} has Count, which is of whole instances, together with {parts[0]}. Give one of them.")
    if "Count" not in resource and not parts:
        raise Invalid(message=f"{where} has no amount. Give Count, or some of {', '.join(AMOUNTS)}.")
    if "Accelerators" in resource and "AcceleratorPartition" in resource:
        raise Invalid(message=f"{where} has Accelerators together with AcceleratorPartition. Give whole ones or partitions.")
    _check_accelerators(where, resource, _type_of(where, resource["InstanceType"]))


def _type_of(where: str, name: str) -> InstanceType:
    try:
        return instance_type(name)
    except NotFound as error:
        raise Unsupported(member=where, remedy="Choose a type that the catalogue of instance types lists.") from error


def _check_accelerators(where: str, resource: Mapping[str, Any], kind: InstanceType) -> None:
    if resource.get("Accelerators") and kind.accelerator is None:
        raise Invalid(message=f"{where} has Accelerators, and that type has none.")
    partition = resource.get("AcceleratorPartition")
    if partition is None:
        return
    offered = PROFILES.get(kind.accelerator or "", {})
    if not offered:
        raise Invalid(message=f"{where} has AcceleratorPartition, and accelerators of that type cannot be partitioned.")
    if partition["Type"] not in offered:
        raise Invalid(message=f"{where} has no partition {partition['Type']}. It has {', '.join(offered)}.")
