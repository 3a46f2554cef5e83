"""What has happened to a host's devices since it started: faults heard and read, each told as one occurrence, and what they leave of each device.

It is kept on disk. An agent that is started again names a fault as its predecessor did, and goes on in the log where the control plane had been
told of everything; a host that is started anew begins afresh, but knows which devices it had.

What was heard is kept together with its place in the log, and only once it has been told: a fault that the disk knew before its place did would be
taken for a repetition when its line is read again, and be told by nobody.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

from agent.accelerators import readings
from agent.accelerators.faults import Faults
from agent.accelerators.kernel_lines import Named, named
from agent.accelerators.kernel_log import Line, LogSource
from agent.accelerators.readings import Reading
from everstep.hardware import FaultClass, HardwareFault, HardwareState

log = logging.getLogger(__name__)

WINDOW_S = 5.0
"""The same code of the same device within this time of the last is the same occurrence: drivers repeat themselves."""
_LONGEST_BURST_S = 60.0
_DOUBT_S = 3600.0
"""How long a code that nobody knows leaves its device in doubt. Every quarantine has an exit."""
_EVIDENCE_BYTES = 1024
COUNT = "count"
_NOWHERE: Mapping[str, str] = MappingProxyType({})
_COSTS = frozenset({FaultClass.REBOOT, FaultClass.REPLACE})
Identify = Callable[[Named], str | None]


@dataclass
class Memory:
    """What is remembered, and kept on disk. ``recent``: burst → its first and last time; ``struck``: device → code → class and time; ``absences``: how many so far; ``places``: index and bus address → the device that was last seen there, in this boot."""

    boot: str = ""
    place: str | None = None
    recent: dict[str, tuple[float, float]] = field(default_factory=dict)
    struck: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    absences: int = 0
    places: dict[str, str] = field(default_factory=dict)


class Watch:
    """``node`` and ``boot`` name the host and this start of it. ``open_log`` gets the place up to which the log has been told, None if never.

    Not for several threads at once.
    """

    def __init__(
        self,
        vendor: str,
        faults: Faults,
        *,
        node: str,
        boot: str,
        store: Path,
        open_log: Callable[[str | None], LogSource],
        wall: Callable[[], float],
    ) -> None:
        self._vendor = vendor
        self._faults = faults
        self._node = node
        self._boot = boot
        self._store = store
        self._wall = wall
        self._memory = _remembered(store, boot)
        self._arrived = deepcopy(self._memory)
        self._log = open_log(self._memory.place)
        self._said: set[str] = set()
        self._kept = ""
        self.deafness = ""
        """Why the log cannot be read; "" while it can."""

    # ------------------------------------------------------------ what is heard

    def hear(self, identify: Identify) -> list[HardwareFault]:
        """Faults that the log has named since the last call. ``identify``: the device's id, by what the line says of it."""
        found = []
        for line in self._lines():
            name = named(line.text)
            if name is not None:
                heard = self.note(name, identify(name), evidence=line.text, place=self._place_of(line), at=line.at)
                found += [heard] if heard else []
        return found

    def note(self, name: Named, device: str | None, *, evidence: str, place: str, at: float | None = None) -> HardwareFault | None:
        """One fault from whatever source; None: it belongs to an occurrence that has been told."""
        when = self._wall() if at is None else at
        if self._is_repeated(name, device, when):
            return None
        return self._told(
            name.code, name.variant, device, evidence=evidence, place=place, at=when, pid=name.pid, vendor=name.vendor
        )

    def judge(self, seen: Sequence[Reading]) -> list[HardwareFault]:
        """Faults that counters and flags stand for: each value of each of them once in a boot."""
        found = []
        for reading in seen:
            for code, value in readings.codes(reading, self._vendor).items():
                place = f"{self._boot}:{code}:{reading.device.id}:{value}"
                if place not in self._said:
                    self._said.add(place)
                    evidence = f"{code} stands at {value} on device {reading.device.index}"
                    found.append(self._told(code, None, reading.device.id, evidence=evidence, place=place, at=self._wall()))
        return found

    def miss(self, absent: Sequence[str], evidence: str) -> list[HardwareFault]:
        """These devices are not there, or ("…") some whose names nobody knows. One occurrence for as long as it is the same ones."""
        wanted = sorted(absent)
        if wanted == self._memory.absent:
            return []
        self._memory.absent = wanted
        for marks in self._memory.struck.values():
            marks.pop(COUNT, None)
        if not wanted:
            return []
        self._memory.absences += 1
        device = wanted[0] if len(wanted) == 1 and wanted[0] in self._memory.known else None
        place = f"{self._boot}:absent:{self._memory.absences}:{','.join(wanted)}"
        return [self._told(COUNT, None, device, evidence=evidence, place=place, at=self._wall())]

    def told(self) -> None:
        """All faults so far have arrived: the log need not be read again up to here."""
        self._memory.place = self._log.place()
        self._arrived = deepcopy(self._memory)
        self._keep()

    # ------------------------------------------------------------ what it leaves

    def state_of(self, device: str) -> HardwareState:
        """By what has struck the device since the host started; "" for what could not be put down to one."""
        now = self._wall()
        classes = [(FaultClass(word), at) for word, at in self._memory.struck.get(device, {}).values()]
        if any(of_class in _COSTS for of_class, _ in classes):
            return HardwareState.UNHEALTHY
        if any(of_class is FaultClass.UNKNOWN and now - at < _DOUBT_S for of_class, at in classes):
            return HardwareState.UNKNOWN
        return HardwareState.HEALTHY

    def why(self) -> str:
        """The codes that have left a mark, for a person."""
        marks = {
            code
            for of_device in self._memory.struck.values()
            for code, (word, _) in of_device.items()
            if FaultClass(word) in _COSTS
        }
        return ", ".join(sorted(marks))

    def forgive(self, device: str) -> None:
        """The device has been reset."""
        for memory in (self._memory, self._arrived):
            memory.struck.pop(device, None)
        self._keep()

    def known(self) -> tuple[str, ...]:
        """Ids of all devices that this host has ever had."""
        return tuple(self._memory.known)

    def meet(self, devices: Sequence[str], places: Mapping[str, str] = _NOWHERE) -> None:
        """``places``: by which a driver may name them. What it names before they have been looked at, after a start of the agent, is theirs, too."""
        strangers = [device for device in devices if device not in self._memory.known]
        if strangers or not places.items() <= self._memory.places.items():
            for memory in (self._memory, self._arrived):
                memory.known += strangers
                memory.places |= places
            self._keep()

    def at(self, place: str) -> str | None:
        return self._memory.places.get(place)

    def close(self) -> None:
        self._log.close()

    # ------------------------------------------------------------ below

    def _place_of(self, line: Line) -> str:
        """Also of a file that goes on over a start of the host, or was cut off and is written from its beginning again."""
        return f"{self._boot}:{line.place}:{zlib.crc32(line.text.encode()):08x}"

    def _lines(self) -> list[Line]:
        try:
            lines = self._log.read()
        except OSError as error:
            if not self.deafness:
                log.warning("the kernel's log cannot be read: %s", error)
            self.deafness = f"the kernel's log cannot be read: {error.strerror or error}"
            self._log.close()
            return []
        self.deafness = ""
        return lines

    def _is_repeated(self, name: Named, device: str | None, at: float) -> bool:
        """A follow-up line may lack the word that tells its code apart; one that has another word is another fault."""
        recent = self._memory.recent
        prefix = f"{name.code}|{device or name.pci or ''}|"
        keys = [key for key in recent if key.startswith(prefix)] if name.variant is None else [prefix + name.variant]
        for key in keys:
            first, last = recent.get(key, (0.0, 0.0))
            if abs(at - last) <= WINDOW_S and at - first <= _LONGEST_BURST_S:
                recent[key] = (first, max(at, last))
                return True
        for key in [key for key, (_, last) in recent.items() if at - last > _LONGEST_BURST_S]:
            del recent[key]
        recent[prefix + (name.variant or "")] = (at, at)
        return False

    def _told(
        self,
        code: str,
        variant: str | None,
        device: str | None,
        *,
        evidence: str,
        place: str,
        at: float,
        pid: int | None = None,
        vendor: str | None = None,
    ) -> HardwareFault:
        of_vendor = vendor or self._vendor
        meaning = self._faults.meaning(of_vendor, code, variant)
        if meaning.fault_class in _COSTS or meaning.fault_class is FaultClass.UNKNOWN:
            self._memory.struck.setdefault(device or "", {})[code] = (meaning.fault_class.value, at)
        return HardwareFault(
            id=hashlib.sha256(f"{self._node}|{place}|{code}".encode()).hexdigest()[:32],
            vendor=of_vendor,
            code=code,
            fault_class=meaning.fault_class,
            type=meaning.type,
            reason=meaning.reason,
            evidence=evidence.encode()[:_EVIDENCE_BYTES].decode(errors="ignore"),
            at=at,
            device=device,
            pid=pid,
        )

    def _keep(self) -> None:
        text = json.dumps(asdict(self._arrived))
        if text == self._kept:
            return
        try:
            self._store.parent.mkdir(parents=True, exist_ok=True)
            draft = self._store.with_suffix(".draft")
            draft.write_text(text)
            draft.replace(self._store)
            self._kept = text
        except OSError as error:
            log.warning("what has happened to the accelerators cannot be kept: %s", error)


def worst(states: Sequence[HardwareState]) -> HardwareState:
    """Of several devices together. None at all is healthy."""
    for state in (HardwareState.UNHEALTHY, HardwareState.UNKNOWN):
        if state in states:
            return state
    return HardwareState.HEALTHY


def _remembered(store: Path, boot: str) -> Memory:
    try:
        memory = Memory(**json.loads(store.read_text()))
    except (OSError, ValueError, TypeError):
        memory = Memory(boot=boot)
    if memory.boot == boot:
        return memory
    return Memory(boot=boot, place=memory.place, known=memory.known, absences=memory.absences)
