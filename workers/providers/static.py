"""Hosts of one's own: listed in an inventory, reached over SSH, set up from the bundle that the control plane serves, given back clean.

Whose a host is, is written on the host (``static_host``), and noted here before it is touched (``static_notes``). A host that does not answer
is never taken for gone: it may be the network. It is said to be alive, its claim stays, and its release is tried until it has succeeded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from everstep.protocol import NODE_ID_VARIABLE
from workers.providers.base import (
    HostNotFound,
    HostRef,
    HostSeen,
    HostSpec,
    InUse,
    Market,
    NoCapacity,
    ProviderError,
    Refused,
    Volume,
)
from workers.providers.bootstrap import bootstrap_script, bundle_checksum
from workers.providers.static_inventory import StaticHost
from workers.providers.static_notes import Note, Notes
from workers.providers.static_seen import claim_in, is_alive, is_at_a_site, seen, seen_in, unfit, wish
from workers.providers.static_ssh import Line, NotTrusted, Unfit, Unreachable

log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_LOOK_S: Final = 15.0
_SETUP_WAIT_S: Final = 15.0
"""For how long a launch waits for the set-up of its host, which goes on by itself: packages may have to be fetched."""
_ADOPT_S: Final = 30.0


@dataclass(frozen=True)
class StaticProvider:
    """``inventory`` gives the hosts as they are listed now. ``environ`` is what agents are told besides our own variables."""

    inventory: Callable[[], tuple[StaticHost, ...]]
    notes: Notes
    line: Line
    api_url: str
    object_store_url: str
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    clock: Callable[[], float] = time.time

    @property
    def settles_within(self) -> timedelta:
        return timedelta(0)

    def launch(self, spec: HostSpec) -> HostSeen:
        """Raises NoCapacity, Refused: with the reason of each host that could have been taken."""
        if spec.market is Market.SPOT:
            message = "hosts of one's own are not sold on a spot market: ask for on-demand capacity"
            raise Refused(message)
        reasons: dict[str, str] = {}
        for wanted in self._wishes(spec, reasons):
            note = self.notes.reserve(wanted)
            if note is None:
                continue
            try:
                return self._adopt(note, spec)
            except Unfit as error:  # another host may do, if nothing of this claim is left on this one
                if error.kind == "busy" or not self._give_back(note, error):
                    raise
                reasons[note.host] = str(error)
                self._remember(note.host, error)
        raise self._nothing(spec, reasons)

    def describe(self, ref: HostRef) -> HostSeen:
        note = self._find(ref)
        try:
            found = self._look(self._host(note))
        except (Unreachable, NotTrusted, Unfit) as error:
            log.warning("%s; in doubt it is alive", error)
            return seen(note, is_alive=True)
        return seen_in(found, note)

    def hosts(self) -> tuple[HostSeen, ...]:
        """Every host with a claim, on it or in our notes. One that is in trouble and has no claim that we know of is not asked again yet."""
        noted = self.notes.all()
        asked = self._survey(host for host in self.inventory() if host.name in noted or not self._is_left_alone(host.name))
        looks = {name: look for name, look in asked.items() if isinstance(look, dict)}
        claimed = {name: note for name, look in looks.items() if (note := claim_in(look))}
        for name in claimed.keys() - noted.keys():
            self.notes.reserve(claimed[name])
        there = [seen(note, is_alive=is_alive(looks[name])) for name, note in claimed.items()]
        known = {note.claim for note in claimed.values()}
        return (*there, *(seen(note, is_alive=name not in looks) for name, note in noted.items() if note.claim not in known))

    def release(self, ref: HostRef) -> None:
        note = self._find(ref)
        host = self._host(note)
        with self.notes.alone(host.name):
            self.line.call(host, "release", command=host.clean_command, **_of(note, host))
        self.notes.forget(note)

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return self._restart(ref, spec, is_fresh=False)

    def reimage(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        """The directory is emptied, ``reimage_command`` is run if the inventory has one, and the agent is set up anew."""
        return self._restart(ref, spec, is_fresh=True)

    def attach_volume(self, ref: HostRef, volume: Volume) -> None:
        """A volume is a folder of the inventory's ``volumes``, which all hosts share; one that does not exist is made."""
        if not volume.id.startswith("vol-") or "/" in volume.id:
            message = f"{volume.id!r} is no volume id"
            raise Refused(message)
        self._attach(ref, volume.id, volume.device)

    def attach_interface(self, ref: HostRef, interface_id: str) -> None:
        """The interface is noted as taken; a host of one's own gets no other hardware by it."""
        if not interface_id.startswith("eni-") or "/" in interface_id:
            message = f"{interface_id!r} is no interface id"
            raise Refused(message)
        self._attach(ref, interface_id, None)

    def detach_volume(self, ref: HostRef, volume_id: str) -> None:
        note = self._find(ref)
        host = self._host(note)
        with self.notes.alone(host.name), _translated():
            self.line.call(host, "detach", name=volume_id, **_of(note, host))

    # ------------------------------------------------------------------ launching

    def _wishes(self, spec: HostSpec, reasons: dict[str, str]) -> Iterator[Note]:
        """The claim at the host that it has; then at each other one that may serve, best first."""
        noted = self.notes.of_claim(spec.claim)
        if noted is not None:
            yield noted
        for host, claimed in self._candidates(spec, reasons):
            yield claimed or wish(host, spec)

    def _candidates(self, spec: HostSpec, reasons: dict[str, str]) -> list[tuple[StaticHost, Note | None]]:
        """The hosts to be tried, best first, all of them looked at a moment ago; alone the one that has this claim already.

        The reasons why others are no candidates are added to ``reasons``.
        """
        free = self._free(spec, reasons)
        fit: list[tuple[StaticHost, Note | None]] = []
        for name, found in self._survey(host for name, host in free.items() if name not in reasons).items():
            claimed = claim_in(found) if isinstance(found, dict) else None
            if claimed is not None and claimed.claim == spec.claim:
                return [(free[name], claimed)]
            error = found if isinstance(found, ProviderError) else unfit(free[name], found)
            if claimed is not None:
                self.notes.reserve(claimed)
            elif error is not None:
                reasons[name] = str(error)
                self._remember(name, error)
            elif is_at_a_site(free[name], spec):
                self.notes.clear(name)
                fit.append((free[name], None))
        zones = [site.zone for site in spec.sites]
        return sorted(fit, key=lambda each: zones.index(each[0].zone) if each[0].zone in zones else len(zones))

    def _free(self, spec: HostSpec, reasons: dict[str, str]) -> dict[str, StaticHost]:
        """Hosts of this type that are nobody's by our notes. Raises Refused if the inventory has none of the type."""
        wanted = [host for host in self.inventory() if spec.instance_type in host.instance_types]
        if not wanted:
            message = f"no host of the inventory stands for {spec.instance_type}: give one these instance_types"
            raise Refused(message)
        noted = self.notes.all()
        free = {host.name: host for host in wanted if host.name not in noted}
        for name in free:
            trouble = self.notes.trouble(name)
            if trouble is not None and self._is_left_alone(name):
                reasons[name] = trouble.why
        return free

    def _adopt(self, note: Note, spec: HostSpec) -> HostSeen:
        """Raises Unfit and NotTrusted: nothing runs there for us."""
        host = self._host(note)
        with self.notes.alone(host.name):
            found = self.line.call(host, "adopt", limit_s=_ADOPT_S, **self._setup(note, host, spec))
        if found["setup"].startswith("failed"):
            message = f"host {host.name} cannot be set up: {found['setup']}"
            raise Unfit(message)
        return seen_in(found, note)

    def _give_back(self, note: Note, error: Unfit) -> bool:
        """After a launch that came to nothing. If that cannot be done now, the note stays, and the launch is repeated."""
        host = self._host(note)
        try:
            if error.kind not in {"taken", "refused"}:
                with self.notes.alone(host.name):
                    self.line.call(host, "release", command=host.clean_command, **_of(note, host))
        except ProviderError as also:
            log.warning("%s; and it cannot be given back: %s", error, also)
            return False
        self.notes.forget(note)
        return True

    def _nothing(self, spec: HostSpec, reasons: Mapping[str, str]) -> ProviderError:
        if not reasons:
            return NoCapacity(f"every host of the inventory that stands for {spec.instance_type} is in use, or at another site")
        told = "; ".join(f"{name}: {why}" if name not in why else why for name, why in reasons.items())
        troubles = [self.notes.trouble(name) for name in reasons]
        if all(trouble is not None and trouble.is_for_operator for trouble in troubles):
            return Refused(told)
        return NoCapacity(told)

    def _remember(self, name: str, error: ProviderError) -> None:
        is_for_operator = isinstance(error, NotTrusted) or (isinstance(error, Unfit) and error.kind == "refused")
        log.warning("left alone for a while: %s", error)
        self.notes.remember(name, str(error), now=self.clock(), is_for_operator=is_for_operator)

    # ------------------------------------------------------------------ the rest

    def _restart(self, ref: HostRef, spec: HostSpec, *, is_fresh: bool) -> HostSeen:
        note = self._find(ref)
        host = self._host(note)
        wanted = replace(note, start=spec.start, image=spec.image)
        reboot = None if is_fresh else host.reboot_command
        request = self._setup(wanted, host, spec, starts=reboot is None)
        command = host.reimage_command if is_fresh else None
        with self.notes.alone(host.name), _translated():
            found = self.line.call(host, "restart", is_fresh=is_fresh, command=command, reboot=reboot, **request)
            claimed = claim_in(found) or wanted
            self.notes.keep(claimed)
        if found["setup"].startswith("failed"):
            message = f"host {host.name} cannot be set up: {found['setup']}"
            raise ProviderError(message)
        return seen(claimed, is_alive=reboot is not None or is_alive(found))

    def _attach(self, ref: HostRef, name: str, device: str | None) -> None:
        note = self._find(ref)
        host = self._host(note)
        if host.volumes is None:
            message = f"host {host.name} has nowhere to attach {name} from: give it `volumes` in the inventory, a folder that all hosts share"
            raise Refused(message)
        with self.notes.alone(host.name), _translated():
            self.line.call(host, "attach", name=name, device=device, **_of(note, host))

    def _setup(self, note: Note, host: StaticHost, spec: HostSpec, *, starts: bool = True) -> dict[str, Any]:
        """What a host is told to become a node. The bundle's checksum goes with it, over a line that is safe."""
        script = bootstrap_script(
            self.api_url,
            claim=spec.claim,
            boot_token=spec.boot_token,
            environ=self._told(note, host, spec),
            directory=host.directory,
            sha256=bundle_checksum(self.api_url, spec),
            python=host.python,
            service=host.service,
            starts=starts,
        )
        return {**_of(note, host), "script": script, "wait_s": _SETUP_WAIT_S}

    def _told(self, note: Note, host: StaticHost, spec: HostSpec) -> dict[str, str]:
        return {
            **self.environ,
            **host.environ,
            NODE_ID_VARIABLE: note.instance_id,
            "EVERSTEP_NODE_ADDRESS": note.address,
            "EVERSTEP_NODE_VCPUS": str(host.vcpus or spec.vcpus),
            "EVERSTEP_NODE_MEMORY_MIB": str(host.memory_mib or spec.memory_mib),
            "EVERSTEP_OBJECT_STORE_URL": self.object_store_url,
            "EVERSTEP_MEMORY_TIER_DIR": f"{host.memory_directory}/{note.instance_id}",
            "EVERSTEP_HOST_START": str(spec.start),
            "EVERSTEP_IMAGE": spec.image or "",
            "EVERSTEP_VOLUMES": f"{host.directory}/attached",
        }

    def _find(self, ref: HostRef) -> Note:
        """Raises HostNotFound: neither noted, nor on any host that answers."""
        note = self.notes.of_claim(ref.claim)
        if note is not None:
            return note
        noted = self.notes.all()
        free = [host for host in self.inventory() if host.name not in noted and not self._is_left_alone(host.name)]
        for found in self._survey(free).values():
            claimed = claim_in(found) if isinstance(found, dict) else None
            if claimed is not None and claimed.claim == ref.claim:
                return self.notes.reserve(claimed) or claimed
        message = f"no host has the claim {ref.claim}"
        raise HostNotFound(message)

    def _host(self, note: Note) -> StaticHost:
        host = next((host for host in self.inventory() if host.name == note.host), None)
        if host is None:
            message = f"host {note.host} has the claim {note.claim} and is not in the inventory any more: put it back until it is released"
            raise ProviderError(message)
        return host

    def _look(self, host: StaticHost) -> dict[str, Any]:
        """``skew_s`` is by how much its clock is off for certain: not by less than the call took."""
        began = self.clock()
        found = self.line.call(host, "look", limit_s=_LOOK_S)
        ended = self.clock()
        return {**found, "skew_s": min(0.0, found["time"] - began) or max(0.0, found["time"] - ended)}

    def _survey(self, hosts: Iterable[StaticHost]) -> dict[str, dict[str, Any] | ProviderError]:
        """What is seen of each host, or why nothing is. Some at a time."""
        asked = list(hosts)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="hosts") as pool:
            return dict(zip((host.name for host in asked), pool.map(self._look_or_error, asked), strict=True))

    def _look_or_error(self, host: StaticHost) -> dict[str, Any] | ProviderError:
        try:
            return self._look(host)
        except ProviderError as error:
            return error

    def _is_left_alone(self, name: str) -> bool:
        trouble = self.notes.trouble(name)
        return trouble is not None and trouble.until > self.clock()


def _of(note: Note, host: StaticHost) -> dict[str, Any]:
    return {"claim": asdict(note), "memory": f"{host.memory_directory}/{note.instance_id}"}


@contextmanager
def _translated() -> Iterator[None]:
    """A host's own word as an error of the port."""
    try:
        yield
    except Unfit as error:
        meant = {"gone": HostNotFound, "taken": HostNotFound, "in use": InUse, "refused": Refused}
        raise meant.get(error.kind, ProviderError)(str(error)) from error
