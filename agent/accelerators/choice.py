"""Which adapter a host needs: as ``EVERSTEP_ACCELERATORS`` says, or by what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.accelerators import nvml
from agent.accelerators.base import Accelerators
from agent.accelerators.counts import devices_of
from agent.accelerators.cpu import Cpu
from agent.accelerators.faults import Faults
from agent.accelerators.kernel_lines import NEURON, NVIDIA
from agent.accelerators.kernel_log import KMSG, File, Kmsg, LogSource
from agent.accelerators.neuron import Neuron, tools_on
from agent.accelerators.neuron_sources import DEV, SYSFS, Sysfs
from agent.accelerators.nvml import Nvidia
from agent.accelerators.simulated import MODELS, Simulated
from agent.accelerators.watch import Watch
from agent.settings import SettingsError

KIND = "EVERSTEP_ACCELERATORS"
KERNEL_LOG = "EVERSTEP_KERNEL_LOG"
NUMBER = "EVERSTEP_NODE_ACCELERATORS"
INSTANCE_TYPE = "EVERSTEP_NODE_INSTANCE_TYPE"
START = "EVERSTEP_HOST_START"
SIMULATED_NUMBER = "EVERSTEP_SIMULATED_DEVICES"
_SIMULATED = "simulated"
_KINDS = ("auto", NVIDIA, NEURON, "cpu", _SIMULATED, *(f"{_SIMULATED}:{vendor}" for vendor in MODELS))
_DEFAULT_SIMULATED = 8
_MOST_DEVICES = 1024
_MOST_STARTS = 10**9
_PROC = Path("/proc")


@dataclass(frozen=True)
class Host:
    """Where an adapter looks. The defaults are the real ones."""

    proc: Path = _PROC
    dev: Path = DEV
    sysfs: Path = SYSFS
    kmsg: Path = KMSG
    library: Callable[[], Any | None] = nvml.library


@dataclass(frozen=True)
class Clocks:
    """``wall`` in Unix seconds; ``monotonic`` in seconds of a clock that only goes forward."""

    wall: Callable[[], float]
    monotonic: Callable[[], float]


@dataclass(frozen=True)
class Wanted:
    """What the environment says. Raises SettingsError when it is read and cannot be followed."""

    kind: str
    number: int | None
    simulated: int
    kernel_log: Path | None
    start: int
    faults: Faults

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Wanted:
        kind = environment.get(KIND) or "auto"
        if kind not in _KINDS:
            message = f"{KIND} is {kind!r}; it must be one of {', '.join(_KINDS)}"
            raise SettingsError(message)
        number = _whole(environment, NUMBER) or devices_of(environment.get(INSTANCE_TYPE, ""))
        simulated = _whole(environment, SIMULATED_NUMBER)
        return cls(
            kind=kind,
            number=number,
            simulated=(number or _DEFAULT_SIMULATED) if simulated is None else simulated,
            kernel_log=Path(environment[KERNEL_LOG]) if environment.get(KERNEL_LOG) else None,
            start=_whole(environment, START, _MOST_STARTS) or 0,
            faults=Faults.read(environment),
        )


def choose(environment: Mapping[str, str], *, state_dir: Path, node: str, clocks: Clocks, host: Host | None = None) -> Accelerators:
    """The adapter, ready to be asked. Once chosen by what was there it stays: a host that has lost all its devices is no host without any.

    Raises:
        SettingsError: a variable names what does not exist; the message says which.
    """
    wanted = Wanted.read(environment)
    where = Host() if host is None else host
    note = state_dir / "accelerators" / "vendor"
    kind = wanted.kind
    if kind == "auto":
        kind = _found(environment, where, before=note.read_text() if note.exists() else None)
    if kind in {NVIDIA, NEURON}:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(kind)
        return _real(kind, wanted, environment, where, state_dir, node, clocks)
    if kind == "cpu":
        return Cpu(lacking=(wanted.number or 0) if wanted.kind == "auto" else 0)
    return Simulated(
        MODELS[kind.partition(":")[2] or NVIDIA],
        wanted.simulated,
        state_dir=state_dir,
        node=node,
        start=wanted.start,
        faults=wanted.faults,
        wall=clocks.wall,
        monotonic=clocks.monotonic,
    )


def _found(environment: Mapping[str, str], host: Host, before: str | None) -> str:
    if before in {NVIDIA, NEURON}:
        return str(before)
    if (host.proc / "driver" / "nvidia").exists() or _has_devices(host.library()):
        return NVIDIA
    if any(host.dev.glob("neuron[0-9]*")) or host.sysfs.exists() or "neuron-ls" in tools_on(environment.get("PATH")):
        return NEURON
    return "cpu"


def _has_devices(library: Any | None) -> bool:
    if library is None:
        return False
    try:
        library.nvmlInit()
        try:
            return bool(library.nvmlDeviceGetCount())
        finally:
            library.nvmlShutdown()
    except library.NVMLError:
        return False


def _real(
    kind: str, wanted: Wanted, environment: Mapping[str, str], host: Host, state_dir: Path, node: str, clocks: Clocks
) -> Accelerators:
    boot = _read(host.proc / "sys/kernel/random/boot_id") or f"start-{wanted.start}"
    uptime_s = float((_read(host.proc / "uptime") or "0").split()[0])
    started = clocks.wall() - uptime_s

    def open_log(place: str | None) -> LogSource:
        if wanted.kernel_log is not None:
            return File(wanted.kernel_log, place, from_start=False)
        return Kmsg(host.kmsg, place, boot=boot, started=started)

    store = state_dir / "accelerators" / "watch.json"
    watch = Watch(kind, wanted.faults, node=node, boot=boot, store=store, open_log=open_log, wall=clocks.wall)
    if kind == NVIDIA:
        return Nvidia(host.library(), watch, boot=boot, number=wanted.number, wall=clocks.wall, monotonic=clocks.monotonic)
    return Neuron(
        watch,
        tools_on(environment.get("PATH")),
        environment=environment,
        sysfs=Sysfs(host.sysfs),
        number=wanted.number,
        monotonic=clocks.monotonic,
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _whole(environment: Mapping[str, str], name: str, most: int = _MOST_DEVICES) -> int | None:
    text = environment.get(name)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > most:
        message = f"{name} is {text!r}; it must be a whole number from 0 to {most}"
        raise SettingsError(message)
    return int(text)
