"""What is made of what is seen of a host. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from workers.providers.base import HostNotFound, HostSeen, HostSpec, Volume
from workers.providers.static_inventory import StaticHost
from workers.providers.static_notes import Note
from workers.providers.static_ssh import Unfit

_LARGEST_SKEW_S: Final = 30.0
_JUST_UP_S: Final = 180.0
"""A host that came up so recently may still be starting its node."""


def wish(host: StaticHost, spec: HostSpec) -> Note:
    """The claim as it is to be written on this host."""
    return Note(
        claim=spec.claim,
        instance_id=instance_id_of(spec.claim),
        host=host.name,
        address=host.node_address or host.address,
        instance_type=spec.instance_type,
        zone=host.zone,
        tags={**host.labels, **spec.tags},
        start=spec.start,
        image=spec.image,
    )


def instance_id_of(claim: str) -> str:
    """``i-`` and 17 hex digits, always the same for a claim: another claim of the same host is another instance."""
    return f"i-{hashlib.sha256(f'static:{claim}'.encode()).hexdigest()[:17]}"


def claim_in(look: dict[str, Any]) -> Note | None:
    return None if look["claim"] is None else Note.of(look["claim"])


def is_alive(look: dict[str, Any]) -> bool:
    """Whether something of the node runs there, or may be about to. Only what is certain is called dead."""
    return bool(look["processes"]) or float(look["up_s"]) < _JUST_UP_S


def seen_in(look: dict[str, Any], note: Note) -> HostSeen:
    """Raises HostNotFound: the host answers, and does not have this claim."""
    claimed = claim_in(look)
    if claimed is None or claimed.claim != note.claim:
        message = f"host {note.host} does not have the claim {note.claim} any more"
        raise HostNotFound(message)
    return seen(claimed, is_alive=is_alive(look))


def seen(note: Note, *, is_alive: bool) -> HostSeen:
    return HostSeen(
        claim=note.claim,
        instance_id=note.instance_id,
        address=note.address,
        is_alive=is_alive,
        tags=note.tags,
        image=note.image,
        start=note.start,
        volumes=tuple(Volume(name, device) for name, device in sorted(note.volumes.items())),
        interfaces=tuple(sorted(note.interfaces)),
        instance_type=note.instance_type,
        zone=note.zone,
    )


def unfit(host: StaticHost, look: dict[str, Any]) -> Unfit | None:
    """The health gate: what a host must have before it is taken, all that it lacks at once. None if it has it."""
    problems = []
    if not look["is_writable"]:
        problems.append(f"{host.directory} cannot be written by {host.user}: set sudo, or give it another directory")
    if look["free_mib"] < host.min_free_mib:
        problems.append(f"{look['free_mib']} MiB are free for {host.directory}; min_free_mib is {host.min_free_mib}")
    if abs(look["skew_s"]) > _LARGEST_SKEW_S:
        problems.append(f"its clock is {look['skew_s']:+.0f} s off: let it follow a time server")
    return Unfit(f"host {host.name}: {'; '.join(problems)}", "refused") if problems else None


def is_at_a_site(host: StaticHost, spec: HostSpec) -> bool:
    """Whether the host stands in one of the zones that are asked for. One without a zone may stand anywhere."""
    zones = {site.zone for site in spec.sites}
    return host.zone is None or not zones - {None} or None in zones or host.zone in zones
