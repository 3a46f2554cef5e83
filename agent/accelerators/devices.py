"""What all vendors' adapters do alike: count the devices, judge their counters, hear the log, and say how they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.accelerators import readings
from agent.accelerators.base import Refusal, Sample, Seen
from agent.accelerators.counts import devices_of
from agent.accelerators.kernel_lines import Named, bus_address
from agent.accelerators.readings import Reading
from agent.accelerators.roll import Roll
from agent.accelerators.watch import Watch, worst
from everstep.examination import Finding, Verdict
from everstep.hardware import Device, HardwareFault, HardwareState


@dataclass(frozen=True)
class Unreadable(Exception):
    """Nothing can be read of the devices now: their state is unknown. The message says why."""

    why: str

    def __str__(self) -> str:
        return self.why


class WatchedDevices(ABC):
    """``number``: how many devices the node's provider says that there are. ``monotonic`` in seconds."""

    def __init__(self, watch: Watch, roll: Roll, *, number: int | None, monotonic: Callable[[], float]) -> None:
        self._watch = watch
        self._roll = roll
        self._number = number
        self._monotonic = monotonic
        self._readings: list[Reading] = []
        self._pending: list[HardwareFault] = []

    @property
    @abstractmethod
    def vendor(self) -> str: ...

    @abstractmethod
    def _read(self) -> list[Reading]:
        """Every device that is there, in the order of their index. Raises Unreadable."""

    def _heard(self) -> list[HardwareFault]:
        """Faults from sources of the vendor's own, besides the log."""
        return []

    def _deafness(self) -> str:
        """Why faults cannot be heard of; "" while they can."""
        return self._watch.deafness

    def detect(self) -> Seen:
        try:
            self._readings = self._read()
        except Unreadable as error:
            return Seen(
                tuple(replace(one.device, state=HardwareState.UNKNOWN) for one in self._readings), HardwareState.UNKNOWN, str(error)
            )
        present = [one.device.id for one in self._readings]
        devices = [one.device for one in self._readings]
        self._watch.meet(present, {place: one.id for one in devices for place in _places(one.index, one.pci)})
        absent = self._roll.call(present, self._watch.known(), self._number, self._monotonic())
        says = f"{len(present)} devices are there, {len(present) + len(absent)} should be"
        if not self._roll.is_in_doubt:
            self._pending += self._watch.miss(absent, says)
        self._pending += self._watch.judge(self._readings)
        return self._seen(says if absent else "")

    def _seen(self, lack: str) -> Seen:
        devices = tuple(replace(one.device, state=self._state(one)) for one in self._readings)
        states = [self._watch.state_of(""), *(device.state for device in devices)]
        states.append(HardwareState.UNHEALTHY if lack else HardwareState.HEALTHY)
        if self._deafness() or self._roll.is_in_doubt:
            states.append(HardwareState.UNKNOWN)
        doubt = "not all devices have been seen yet" if self._roll.is_in_doubt and not lack else ""
        why = self._watch.why()
        unread = {one.unread for one in self._readings if one.unread}
        says = [lack, doubt, f"struck by {why}" if why else "", self._deafness(), *sorted(unread)]
        return Seen(devices, worst(states), "; ".join(part for part in says if part))

    def _state(self, one: Reading) -> HardwareState:
        of_watch = self._watch.state_of(one.device.id)
        return worst([of_watch, HardwareState.UNKNOWN if one.unread else HardwareState.HEALTHY])

    def expected(self, instance_type: str) -> int | None:
        return self._number if self._number is not None else devices_of(instance_type)

    def poll(self) -> Sequence[Sample]:
        """Of the last ``detect``."""
        return readings.samples(self._readings)

    def events(self) -> Sequence[HardwareFault]:
        self._pending += self._watch.hear(self._identify)
        self._pending += self._heard()
        pending, self._pending = self._pending, []
        return pending

    def told(self) -> None:
        self._watch.told()

    def diagnose(self, level: int) -> Sequence[Finding]:
        """What the driver says of each device. Adapters add their vendor's own tests at higher levels."""
        del level
        seen = self.detect()
        verdict = Verdict.PASSED if seen.state is HardwareState.HEALTHY else Verdict.FAILED
        says = seen.says or f"{len(seen.devices)} devices are there and healthy"
        count = None if self._number is None else float(self._number)
        return [Finding("InstanceStress", verdict, says, measured=float(len(seen.devices)), threshold=count, unit="devices")]

    def partition(self, layout: Mapping[str, str]) -> None:
        del layout
        message = f"{self.vendor} devices cannot be partitioned by this agent"
        raise Refusal(message)

    def reset(self, device: Device) -> None:
        message = f"device {device.index} cannot be reset by this agent; start the host anew instead"
        raise Refusal(message)

    def close(self) -> None:
        self._watch.close()

    def _identify(self, name: Named) -> str | None:
        return next((found for place in _places(name.index, name.pci) if (found := self._watch.at(place)) is not None), None)


def _places(index: int | None, pci: str | None) -> Iterator[str]:
    """By which a driver may name a device."""
    if index is not None:
        yield str(index)
    if pci is not None:
        yield bus_address(pci)
