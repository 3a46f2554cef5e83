"""The port to whoever has machines: few verbs, and errors that carry the policy.

``NoCapacity`` → plan elsewhere or wait. ``Refused`` → an operator must act. ``HostNotFound`` → there is no such host: what a release ends
with. ``InUse`` → somebody else has it: wait, or ask for something else. ``Throttled`` → ask less often. Anything else → try again later.

Every verb may be called twice: a worker may die between the call and its note of it. A launch is idempotent by its claim, a restart by the
number of the start that is wanted, an attachment by what is attached. What a provider must do is said by
``tests/workers/providers/contract.py``, which every provider passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

_USUAL_REST = timedelta(seconds=10)
"""For a provider that does not say for how long it wants to be left alone."""


class ProviderError(Exception):
    """The provider could not do it now; asking again later may help."""


class NoCapacity(ProviderError):
    """There is no host of this kind to be had now."""


class Throttled(ProviderError):
    """Too much has been asked; ``after`` is how long to wait before anything is asked again, None if the provider does not say.

    ``rest`` is for how long whoever asked leaves it alone; the worker's loop sees to that, whichever call it was.
    """

    def __init__(self, message: str, after: timedelta | None = None) -> None:
        super().__init__(message)
        self.after = after

    @property
    def rest(self) -> timedelta:
        return _USUAL_REST if self.after is None else self.after


class Refused(ProviderError):
    """The provider will not do this, however often it is asked: an operator must act."""


class HostNotFound(ProviderError):
    """The provider knows no such host: it is gone, or never was."""


class InUse(ProviderError):
    """The volume or interface is attached to another host."""


class Market(StrEnum):
    """How a host is paid for."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True)
class Disk:
    """A volume that is made with the host and goes with it, for ``InstanceStorageConfigs``."""

    gib: int
    mount: str | None = None
    kms_key: str | None = None
    is_root: bool = False


@dataclass(frozen=True)
class Site:
    """Where a host may stand: a subnet, its security groups, and its zone if that is known. A provider without such things ignores it."""

    subnet: str | None = None
    security_groups: tuple[str, ...] = ()
    zone: str | None = None


@dataclass(frozen=True)
class HostSpec:
    """A host as it is wished for. ``claim`` names the wish: launching it twice gives the same host.

    ``start`` is the number of the start that is wanted, from 0 for the launch; ``image`` is the release that it starts from, None for the
    provider's own. ``sites`` are in the order of preference, empty for anywhere; ``threads_per_core`` None for the type's own.
    """

    claim: str
    instance_type: str
    vcpus: int
    memory_mib: int
    boot_token: str = field(repr=False)
    tags: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    start: int = 0
    market: Market = Market.ON_DEMAND
    sites: tuple[Site, ...] = ()
    disks: tuple[Disk, ...] = ()
    threads_per_core: int | None = None


@dataclass(frozen=True)
class Volume:
    """A volume and the name of its device on the host."""

    id: str
    device: str


@dataclass(frozen=True)
class HostRef:
    """Which host: by its claim, which is always known, and by its instance id once the launch has been noted."""

    claim: str
    instance_id: str | None = None


@dataclass(frozen=True)
class HostSeen:
    """A host as the provider knows it. ``is_alive`` is about the machine, not about our agent on it."""

    claim: str
    instance_id: str
    address: str | None
    is_alive: bool
    tags: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    start: int = 0
    volumes: tuple[Volume, ...] = ()
    interfaces: tuple[str, ...] = ()
    instance_type: str | None = None
    market: Market = Market.ON_DEMAND
    zone: str | None = None


class Provider(Protocol):
    @property
    def settles_within(self) -> timedelta:
        """For how long after a call an answer may still be that of before it: until then a host that is not found may yet appear."""
        ...

    def launch(self, spec: HostSpec) -> HostSeen:
        """Starts the host of this claim, or finds it started.

        Raises:
            NoCapacity: none to be had.
            Refused: not allowed, or a kind that does not exist here.
        """
        ...

    def describe(self, ref: HostRef) -> HostSeen:
        """Raises HostNotFound."""
        ...

    def hosts(self) -> tuple[HostSeen, ...]:
        """Every host that we have launched and not released, also those which nobody noted; each of several that one claim has."""
        ...

    def release(self, ref: HostRef) -> None:
        """Asks for the end of the host: of the instance, if its id is given, else of all that the claim has. Called again and again, until it raises.

        Raises:
            HostNotFound: it is gone.
        """
        ...

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        """Starts the host anew, unless it is at ``spec.start`` already: everything that runs on it ends, its disk, id and address stay.

        Raises:
            HostNotFound: it is gone.
            Refused: it cannot be started anew.
        """
        ...

    def reimage(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        """As ``reboot``, from ``spec.image`` and with a fresh disk. What is attached stays attached."""
        ...

    def attach_volume(self, ref: HostRef, volume: Volume) -> None:
        """Raises HostNotFound; InUse: another host has the volume, or the device's name is taken; Refused: no such volume."""
        ...

    def detach_volume(self, ref: HostRef, volume_id: str) -> None:
        """A volume that is not attached is detached already. Raises HostNotFound."""
        ...

    def attach_interface(self, ref: HostRef, interface_id: str) -> None:
        """Raises HostNotFound; InUse: another host has it; Refused: no such interface."""
        ...
