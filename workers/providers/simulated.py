"""Hosts that exist in memory only: for simulations and tests. Passes the contract of every provider.

Nothing comes up on its own: whoever simulates plays the hosts' agents, and kills hosts. ``workers.fleet`` does so for thousands of them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from workers.providers.base import HostNotFound, HostRef, HostSeen, HostSpec, InUse, NoCapacity, ProviderError, Refused, Volume


@dataclass
class SimulatedProvider:
    """``refused`` are instance types that it will not launch, ``scarce`` says how many hosts of a type there can be; ``releases`` is how often a release is asked for until the host is gone.

    ``stuck`` are claims whose hosts it cannot end now. With ``late``, a host is not found for so long after its launch, by ``now``.
    """

    capacity: int = 64
    refused: frozenset[str] = frozenset()
    scarce: dict[str, int] = field(default_factory=dict)
    releases: int = 1
    late: timedelta = timedelta(0)
    now: Callable[[], datetime] | None = None
    stuck: set[str] = field(default_factory=set)
    _hosts: dict[str, HostSeen] = field(default_factory=dict)
    _types: dict[str, str] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    _launched_at: dict[str, datetime] = field(default_factory=dict)
    _addresses: set[str] = field(default_factory=set)

    @property
    def settles_within(self) -> timedelta:
        return self.late

    def launch(self, spec: HostSpec) -> HostSeen:
        if spec.claim in self._hosts:
            return self._hosts[spec.claim]
        if spec.instance_type in self.refused:
            message = f"{spec.instance_type} is not to be had here"
            raise Refused(message)
        if len(self._hosts) >= self.capacity:
            message = f"all {self.capacity} hosts are in use"
            raise NoCapacity(message)
        if sum(kind == spec.instance_type for kind in self._types.values()) >= self.scarce.get(spec.instance_type, self.capacity):
            message = f"there are no more {spec.instance_type}"
            raise NoCapacity(message)
        zone = self._zone_for(spec)
        digest = hashlib.sha256(spec.claim.encode()).hexdigest()
        host = HostSeen(
            spec.claim,
            f"i-{digest[:17]}",
            self._free_address(int(digest[:6], 16)),
            is_alive=True,
            tags=dict(spec.tags),
            image=spec.image,
            instance_type=spec.instance_type,
            market=spec.market,
            zone=zone,
        )
        self._hosts[spec.claim] = host
        self._addresses.add(str(host.address))
        self._types[spec.claim] = spec.instance_type
        if self.now is not None:
            self._launched_at[spec.claim] = self.now()
        return host

    def describe(self, ref: HostRef) -> HostSeen:
        return self._host(ref)

    def hosts(self) -> tuple[HostSeen, ...]:
        return tuple(host for host in self._hosts.values() if self._is_visible(host.claim))

    def release(self, ref: HostRef) -> None:
        self._host(ref)
        if ref.claim in self.stuck:
            message = f"the host of claim {ref.claim} does not end"
            raise ProviderError(message)
        self._asked[ref.claim] = self._asked.get(ref.claim, 0) + 1
        if self._asked[ref.claim] >= self.releases:
            self._addresses.discard(str(self._hosts.pop(ref.claim).address))
            self._types.pop(ref.claim, None)

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return self._restart(ref, spec, self._host(ref).image)

    def reimage(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return self._restart(ref, spec, spec.image)

    def attach_volume(self, ref: HostRef, volume: Volume) -> None:
        host = self._host(ref)
        if volume in host.volumes:
            return
        for other in self._hosts.values():
            if any(one.id == volume.id for one in other.volumes):
                message = f"{volume.id} is attached to {other.instance_id}"
                raise InUse(message)
        self._hosts[ref.claim] = replace(host, volumes=(*host.volumes, volume))

    def detach_volume(self, ref: HostRef, volume_id: str) -> None:
        host = self._host(ref)
        self._hosts[ref.claim] = replace(host, volumes=tuple(one for one in host.volumes if one.id != volume_id))

    def attach_interface(self, ref: HostRef, interface_id: str) -> None:
        host = self._host(ref)
        if interface_id in host.interfaces:
            return
        for other in self._hosts.values():
            if interface_id in other.interfaces:
                message = f"{interface_id} is attached to {other.instance_id}"
                raise InUse(message)
        self._hosts[ref.claim] = replace(host, interfaces=(*host.interfaces, interface_id))

    def kill(self, claim: str) -> None:
        """The host dies; the provider still knows it."""
        self._hosts[claim] = replace(self._hosts[claim], is_alive=False)

    def _zone_for(self, spec: HostSpec) -> str | None:
        """Where the host is to stand: the first zone that is wished for. May raise NoCapacity."""
        return next((site.zone for site in spec.sites if site.zone), None)

    def _free_address(self, first: int) -> str:
        """Of 10.0.0.0/8, which has room for the largest fleet."""
        for number in itertools.count(first):
            address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            if address not in self._addresses:
                return address
        raise AssertionError

    def _restart(self, ref: HostRef, spec: HostSpec, image: str | None) -> HostSeen:
        host = self._host(ref)
        if host.start < spec.start:
            host = replace(host, start=spec.start, image=image, is_alive=True, tags=dict(spec.tags))
            self._hosts[ref.claim] = host
        return host

    def _host(self, ref: HostRef) -> HostSeen:
        if ref.claim not in self._hosts or not self._is_visible(ref.claim):
            message = f"no host for claim {ref.claim}"
            raise HostNotFound(message)
        return self._hosts[ref.claim]

    def _is_visible(self, claim: str) -> bool:
        return self.now is None or self.now() >= self._launched_at[claim] + self.late
