"""Hosts that exist in memory only: for simulations and tests. Passes the contract of every provider.

Nothing comes up on its own: whoever simulates plays the hosts' agents, and kills hosts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from workers.providers.base import HostNotFound, HostRef, HostSeen, HostSpec, NoCapacity, ProviderError, Refused


@dataclass
class SimulatedProvider:
    """``refused`` are instance types that it will not launch; ``releases`` is how often a release is asked for until the host is gone.

    ``stuck`` are claims whose hosts it cannot end now.
    """

    capacity: int = 64
    refused: frozenset[str] = frozenset()
    releases: int = 1
    stuck: set[str] = field(default_factory=set)
    _hosts: dict[str, HostSeen] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)

    def launch(self, spec: HostSpec) -> HostSeen:
        if spec.claim in self._hosts:
            return self._hosts[spec.claim]
        if spec.instance_type in self.refused:
            message = f"{spec.instance_type} is not to be had here"
            raise Refused(message)
        if len(self._hosts) >= self.capacity:
            message = f"all {self.capacity} hosts are in use"
            raise NoCapacity(message)
        digest = hashlib.sha256(spec.claim.encode()).hexdigest()
        address = f"10.{int(digest[:2], 16)}.{int(digest[2:4], 16)}.{int(digest[4:6], 16)}"
        self._hosts[spec.claim] = HostSeen(spec.claim, f"i-{digest[:17]}", address, is_alive=True, tags=dict(spec.tags))
        return self._hosts[spec.claim]

    def describe(self, ref: HostRef) -> HostSeen:
        return self._host(ref)

    def hosts(self) -> tuple[HostSeen, ...]:
        return tuple(self._hosts.values())

    def release(self, ref: HostRef) -> None:
        self._host(ref)
        if ref.claim in self.stuck:
            message = f"the host of claim {ref.claim} does not end"
            raise ProviderError(message)
        self._asked[ref.claim] = self._asked.get(ref.claim, 0) + 1
        if self._asked[ref.claim] >= self.releases:
            del self._hosts[ref.claim]

    def kill(self, claim: str) -> None:
        """The host dies; the provider still knows it."""
        self._hosts[claim] = replace(self._hosts[claim], is_alive=False)

    def _host(self, ref: HostRef) -> HostSeen:
        if ref.claim not in self._hosts:
            message = f"no host for claim {ref.claim}"
            raise HostNotFound(message)
        return self._hosts[ref.claim]
