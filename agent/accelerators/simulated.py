"""Accelerators that are made up, and speak as the real ones do: a script says what they show, and what their driver logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.accelerators.devices import Unreadable, WatchedDevices
from agent.accelerators.faults import Faults
from agent.accelerators.kernel_log import File
from agent.accelerators.readings import Reading
from agent.accelerators.roll import Roll
from agent.accelerators.script import Script, pci_of
from agent.accelerators.watch import Watch
from everstep.hardware import Device

__all__ = ["Model", "Script", "Simulated"]


@dataclass(frozen=True)
class Model:
    """What each of the devices is. ``variable`` is that by which a process sees some of them."""

    vendor: str
    name: str
    memory_mib: int
    cores: int
    links: int
    variable: str


MODELS: Mapping[str, Model] = {
    "nvidia": Model("nvidia", "simulated NVIDIA", 81_920, 1, 18, "CUDA_VISIBLE_DEVICES"),
    "neuron": Model("neuron", "simulated Trainium", 32_768, 2, 4, "NEURON_RT_VISIBLE_CORES"),
}


class Simulated(WatchedDevices):
    """``start`` counts the starts of the host: what was lost or counted before is back, unless it is lost for good."""

    def __init__(
        self,
        model: Model,
        number: int,
        *,
        state_dir: Path,
        node: str,
        start: int,
        faults: Faults,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._model = model
        self._script = Script(state_dir)
        self._node = node
        self._boot = f"{node}:{start}"
        is_new = _is_new_start(self._script, start)
        watch = Watch(
            model.vendor,
            faults,
            node=node,
            boot=self._boot,
            store=self._script.folder / "watch.json",
            open_log=lambda place: File(self._script.kernel_log, None if is_new else place, from_start=True, may_be_missing=True),
            wall=wall,
        )
        super().__init__(watch, Roll(patience_s=0.0), number=number, monotonic=monotonic)

    @property
    def vendor(self) -> str:
        return self._model.vendor

    def _read(self) -> list[Reading]:
        play = self._script.play()
        if play.is_silent:
            message = "the simulated monitor is silent"
            raise Unreadable(message)
        found = []
        for index in range(self._number or 0):
            if str(index) not in play.lost:
                gauges = {"memory_total_bytes": self._model.memory_mib * 2.0**20, **_of(play.gauges, index)}
                counts = {name: int(value) for name, value in _of(play.counts, index).items()}
                found.append(Reading(self._device(index), gauges, counts))
        return found

    def _device(self, index: int) -> Device:
        model = self._model
        name = f"simulated-{self._node}-{index}"
        return Device(name, index, model.name, model.memory_mib, model.cores, f"{pci_of(index)}.0", model.links)

    def env(self, devices: Sequence[Device]) -> Mapping[str, str]:
        cores = [device.index * self._model.cores + core for device in devices for core in range(self._model.cores)]
        return {self._model.variable: ",".join(str(core) for core in cores)}

    def reset(self, device: Device) -> None:
        """A device that is there is as good as new."""
        self._watch.forgive(device.id)
        with self._script.changed() as play:
            for table in play.counts.values():
                table.pop(str(device.index), None)


def _of(table: Mapping[str, Mapping[str, float]], index: int) -> dict[str, float]:
    return {name: values[str(index)] for name, values in table.items() if str(index) in values}


def _is_new_start(script: Script, start: int) -> bool:
    """Whether the host has been started anew since the last time: its kernel's log is empty then, and so are its counters."""
    script.folder.mkdir(parents=True, exist_ok=True)
    note = script.folder / "start"
    before = note.read_text() if note.exists() else str(start)
    if before != str(start):
        script.kernel_log.unlink(missing_ok=True)
        with script.changed() as play:
            play.counts = {}
            play.lost = {index: is_for_good for index, is_for_good in play.lost.items() if is_for_good}
    note.write_text(str(start))
    return before != str(start)
