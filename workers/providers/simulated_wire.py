"""How a provider's verbs travel between the control plane and a simulated fleet: pure both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from workers.providers.base import (
    Disk,
    HostNotFound,
    HostRef,
    HostSeen,
    HostSpec,
    InUse,
    Market,
    NoCapacity,
    ProviderError,
    Refused,
    Site,
    Throttled,
    Volume,
)

ERRORS: Mapping[str, type[ProviderError]] = MappingProxyType(
    {kind.__name__: kind for kind in (ProviderError, NoCapacity, Throttled, Refused, HostNotFound, InUse)}
)


def spec_to_wire(spec: HostSpec) -> dict[str, Any]:
    """With the boot token: the fleet's agents register with it."""
    return {**asdict(spec), "tags": dict(spec.tags)}


def spec_from_wire(wire: Mapping[str, Any]) -> HostSpec:
    """Raises KeyError, TypeError or ValueError."""
    sites = tuple(Site(**{**site, "security_groups": tuple(site["security_groups"])}) for site in wire["sites"])
    disks = tuple(Disk(**disk) for disk in wire["disks"])
    return HostSpec(**{**wire, "market": Market(wire["market"]), "sites": sites, "disks": disks})


def seen_to_wire(seen: HostSeen) -> dict[str, Any]:
    return {**asdict(seen), "tags": dict(seen.tags)}


def seen_from_wire(wire: Mapping[str, Any]) -> HostSeen:
    volumes = tuple(Volume(**volume) for volume in wire["volumes"])
    return HostSeen(**{**wire, "market": Market(wire["market"]), "volumes": volumes, "interfaces": tuple(wire["interfaces"])})


def ref_to_wire(ref: HostRef) -> dict[str, Any]:
    return asdict(ref)


def all_from_wire(wire: Sequence[Mapping[str, Any]]) -> tuple[HostSeen, ...]:
    return tuple(seen_from_wire(one) for one in wire)


def error_to_wire(error: ProviderError) -> dict[str, Any]:
    after = error.after if isinstance(error, Throttled) else None
    return {"kind": type(error).__name__, "message": str(error), "after_s": after.total_seconds() if after else None}


def error_from_wire(wire: Mapping[str, Any]) -> ProviderError:
    kind = ERRORS.get(wire["kind"], ProviderError)
    if kind is Throttled:
        after = wire.get("after_s")
        return Throttled(wire["message"], None if after is None else timedelta(seconds=after))
    return kind(wire["message"])
