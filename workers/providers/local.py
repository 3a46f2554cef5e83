"""Hosts on this very machine: a directory, a loopback address and a few processes each. A volume is a directory as well.

A host outlives the control plane that launched it. Its processes carry its instance id in ``EVERSTEP_NODE_ID``, and it is alive as long as
one of them is. Its address is held by a bound socket that its processes inherit, so it is unique among all homes on the machine, and free
again once the host is dead.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from everstep.embedded import memory, procfs
from everstep.embedded.procfs import ProcessKey
from everstep.protocol import NODE_ID_VARIABLE
from workers.providers.attachments import FOLDER, Attachments
from workers.providers.base import HostNotFound, HostRef, HostSeen, HostSpec, Market, NoCapacity, ProviderError, Volume

ROOT = Path(__file__).parents[2]
_SHEPHERD = ROOT / "agent" / "shepherd.py"
_HOLDING_PORT = 9199
"""Bound on the host's address for as long as any of its processes lives; nobody listens there."""
_NETWORK = (127, 77)
_ADDRESSES = 254 * 254
_START_S = 20.0
_GRACE_S = 4.0
"""Longer than the shepherd's own grace, so that it ends its flock itself."""
_KILL_S = 2.0
RECLAIMED = "reclaimed"
"""In a host's directory: it has been taken back, for good. Written by its agent (``everstep fault spot-reclaim``) just before its end."""
_KEPT = ("host.json", ".lock", "agent.log", FOLDER)
"""What a fresh disk does not take from a host's directory."""


@dataclass(frozen=True)
class LocalProvider:
    """``directory`` holds a directory a host. ``environ`` is what the agents get besides our own variables."""

    directory: Path
    api_url: str
    object_store_url: str
    capacity: int = 64
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    memory_root: Path = memory.ROOT
    """Where the nodes' memory tiers keep their shards, a folder a node."""

    @property
    def settles_within(self) -> timedelta:
        return timedelta(0)

    def launch(self, spec: HostSpec) -> HostSeen:
        instance_id = instance_id_of(spec.claim)
        place = self.directory / instance_id
        with _alone(self.directory):
            if (place / "shepherd.json").exists():
                return self._seen(place)
            if not (place / "host.json").exists() and len(self._places()) >= self.capacity:
                message = f"all {self.capacity} hosts of this machine are in use"
                raise NoCapacity(message)
            with self._address(instance_id) as (address, holder):
                _write(place, _note(spec, instance_id, address))
                self._start(place, spec, address, holder)
        return self._seen(place)

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return self._restart(ref, spec, is_fresh=False)

    def reimage(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        return self._restart(ref, spec, is_fresh=True)

    def attach_volume(self, ref: HostRef, volume: Volume) -> None:
        """A volume that does not exist is made: an empty directory."""
        place = self._place(ref)
        with _alone(place):
            self._attachments(place).attach_volume(volume)

    def detach_volume(self, ref: HostRef, volume_id: str) -> None:
        place = self._place(ref)
        with _alone(place):
            self._attachments(place).detach_volume(volume_id)

    def attach_interface(self, ref: HostRef, interface_id: str) -> None:
        """A loopback address is all that a local host has: the interface is noted as taken, and nothing is set up for it."""
        place = self._place(ref)
        with _alone(place):
            self._attachments(place).attach_interface(interface_id)

    def describe(self, ref: HostRef) -> HostSeen:
        return self._seen(self._place(ref))

    def hosts(self) -> tuple[HostSeen, ...]:
        seen = []
        for place in self._places():
            with suppress(HostNotFound):  # released meanwhile, or its note is unreadable: it must not hide the others
                seen.append(self._seen(place))
        return tuple(seen)

    def release(self, ref: HostRef) -> None:
        place = self._place(ref, is_reclaimed_too=True)
        with _alone(place):
            _end(place)
            memory.give_back(place.name, self.memory_root)
            self._attachments(place).give_back()
            # The note goes first: without it the host is no more, whatever is left of its directory after a crash.
            (place / "host.json").unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)

    def _restart(self, ref: HostRef, spec: HostSpec, *, is_fresh: bool) -> HostSeen:
        """A crash leaves what a repetition takes up: the start is noted after the end of what ran before, and before its first process."""
        place = self._place(ref)
        with _alone(place):
            noted = _read(self._place(ref) / "host.json") or {}  # another worker may have released it while we waited
            is_noted = noted.get("start", 0) >= spec.start
            if is_noted and (place / "shepherd.json").exists():
                return self._seen(place)
            if not is_noted:
                _end(place)
                memory.give_back(place.name, self.memory_root)  # what was in memory does not outlive a start
                (place / "shepherd.json").unlink(missing_ok=True)
                if is_fresh:
                    _wipe(place)
            with self._address(place.name) as (address, holder):
                _write(place, {**noted, **_note(spec, place.name, address)})
                self._start(place, spec, address, holder)
        return self._seen(place)

    def _attachments(self, place: Path) -> Attachments:
        return Attachments(place, self.directory.parent / "volumes")

    def _place(self, ref: HostRef, *, is_reclaimed_too: bool = False) -> Path:
        """A host that has been taken back is known no longer; what is left of it here is still to be tidied away."""
        place = self.directory / instance_id_of(ref.claim)
        if not (place / "host.json").exists() or ((place / RECLAIMED).exists() and not is_reclaimed_too):
            message = f"no host {place.name}"
            raise HostNotFound(message)
        return place

    def _places(self) -> list[Path]:
        return sorted(path.parent for path in self.directory.glob("i-*/host.json") if not (path.parent / RECLAIMED).exists())

    def _seen(self, place: Path) -> HostSeen:
        noted = _read(place / "host.json")
        if noted is None:
            message = f"no host {place.name}"
            raise HostNotFound(message)
        shepherd = _shepherd(place)
        is_alive = (shepherd is not None and procfs.is_alive(shepherd)) or bool(_members(place.name, shepherd))
        held = self._attachments(place)
        return HostSeen(
            claim=noted["claim"],
            instance_id=noted["instance_id"],
            address=noted["address"],
            is_alive=is_alive,
            tags=noted["tags"],
            image=noted.get("image"),
            start=noted.get("start", 0),
            volumes=held.volumes(),
            interfaces=held.interfaces(),
            instance_type=noted.get("instance_type"),
            market=Market(noted.get("market", Market.ON_DEMAND.value)),
        )

    @contextmanager
    def _address(self, instance_id: str) -> Iterator[tuple[str, int]]:
        """A free address and the socket that holds it. The same host is offered the same one first."""
        noted = {host["address"] for place in self._places() if (host := _read(place / "host.json"))}
        own = _read(self.directory / instance_id / "host.json")
        first = int(hashlib.sha256(instance_id.encode()).hexdigest(), 16) % _ADDRESSES
        candidates = [own["address"]] if own else []
        candidates += [_address((first + number) % _ADDRESSES) for number in range(_ADDRESSES)]
        for address in candidates:
            if address in noted and not (own and own["address"] == address):
                continue
            with socket.socket() as holder:
                try:
                    holder.bind((address, _HOLDING_PORT))
                except OSError:
                    continue
                holder.set_inheritable(True)
                yield address, holder.fileno()
                return
        message = "every address of the local network is in use"
        raise NoCapacity(message)

    def _start(self, place: Path, spec: HostSpec, address: str, holder: int) -> None:
        """Starts the host's first process, which detaches itself and says so."""
        state = place / "state"
        state.mkdir(mode=0o700, exist_ok=True)
        environ = self._environment(place, spec, address)
        # Neither site nor the user's paths: the first process is small and has nothing to import.
        command = [sys.executable, "-I", "-S", str(_SHEPHERD)]
        with (place / "agent.log").open("ab") as log:
            done = subprocess.run(
                command,
                env=environ,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(holder,),
                timeout=_START_S,
                check=False,
            )
        if done.returncode != 0:
            message = f"the first process of {place.name} did not start: see {place / 'agent.log'}"
            raise ProviderError(message)

    def _environment(self, place: Path, spec: HostSpec, address: str) -> dict[str, str]:
        """What the host's first process is told, and hands on to the agent."""
        return {
            "EVERSTEP_MEMORY_TIER_MOUNT": "never",  # a mount would need root, and outlive what made it
            "EVERSTEP_ACCELERATORS": "cpu",  # the machine's own are no node's alone; an operator's word (auto, simulated) counts more
            **self.environ,
            NODE_ID_VARIABLE: place.name,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "EVERSTEP_HOST_DIR": str(place),
            "EVERSTEP_RECLAIM_FILE": str(place / RECLAIMED),
            "EVERSTEP_AGENT_STATE": str(place / "state"),
            "EVERSTEP_API_URL": self.api_url,
            "EVERSTEP_BOOT_TOKEN": spec.boot_token,
            "EVERSTEP_NODE_ADDRESS": address,
            "EVERSTEP_NODE_VCPUS": str(spec.vcpus),
            "EVERSTEP_NODE_MEMORY_MIB": str(spec.memory_mib),
            "EVERSTEP_OBJECT_STORE_URL": self.object_store_url,
            "EVERSTEP_MEMORY_TIER_DIR": str(memory.folder_of(place.name, self.memory_root)),
            "EVERSTEP_NODE_INSTANCE_TYPE": spec.instance_type,
            "EVERSTEP_HOST_START": str(spec.start),
            "EVERSTEP_IMAGE": spec.image or "",
            "EVERSTEP_VOLUMES": str(self._attachments(place).directory),
        }


def instance_id_of(claim: str) -> str:
    """``i-`` and 17 hex digits, always the same for a claim."""
    return f"i-{hashlib.sha256(claim.encode()).hexdigest()[:17]}"


def _address(number: int) -> str:
    return f"{_NETWORK[0]}.{_NETWORK[1]}.{1 + number // 254}.{1 + number % 254}"


def _note(spec: HostSpec, instance_id: str, address: str) -> dict[str, Any]:
    return {
        "claim": spec.claim,
        "instance_id": instance_id,
        "address": address,
        "tags": dict(spec.tags),
        "start": spec.start,
        "image": spec.image,
        "instance_type": spec.instance_type,
        "market": spec.market.value,
    }


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One at a time in a directory.

    Of launches in a home, so that hosts are counted and a repeated launch does not overtake itself; of what is done to one host.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end(place: Path) -> None:
    """Ends every process of a host. Raises ProviderError if one stays."""
    shepherd = _shepherd(place)
    if shepherd is not None:
        procfs.send([shepherd], signal.SIGTERM)
        procfs.await_end(_members(place.name, shepherd), _GRACE_S)
    for _ in range(3):  # a process may be forked while we look
        left = _members(place.name, shepherd)
        procfs.send(left, signal.SIGKILL)
        procfs.await_end(left, _KILL_S)
    if _members(place.name, shepherd):
        message = f"processes of {place.name} do not end"
        raise ProviderError(message)


def _wipe(place: Path) -> None:
    """As a fresh disk: everything but what is attached, and our own notes."""
    for entry in place.iterdir():
        if entry.name in _KEPT:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _shepherd(place: Path) -> ProcessKey | None:
    key = _read(place / "shepherd.json")
    return None if key is None else ProcessKey(key["pid"], key["started"])


def _members(instance_id: str, shepherd: ProcessKey | None) -> list[ProcessKey]:
    """The live processes of a host, by the kernel's word rather than by our notes."""
    found = set(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == instance_id))
    if shepherd is not None and procfs.is_alive(shepherd):
        found.add(shepherd)
    return sorted(found, key=lambda key: key.pid)


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return None


def _write(place: Path, noted: dict[str, Any]) -> None:
    """In one piece: a crash leaves the whole note or none."""
    place.mkdir(mode=0o700, exist_ok=True)
    fresh = place / "host.json.new"
    fresh.write_text(json.dumps(noted))
    fresh.replace(place / "host.json")
