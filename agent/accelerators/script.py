"""What simulated accelerators are made to do: a kernel log that is appended to, and a file of what they show. Written by hands, read by the adapter.

Both lie in ``<state_dir>/accelerators``: ``kmsg``, lines as a driver writes them, and ``devices.json``. Several writers may take turns.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

Table = dict[str, dict[str, float]]


@dataclass
class Play:
    """``devices.json``. ``lost``: index → whether it stays away when the host is started anew. ``counts``, ``gauges``: name → index → value."""

    is_silent: bool = False
    lost: dict[str, bool] = field(default_factory=dict)
    counts: Table = field(default_factory=dict)
    gauges: Table = field(default_factory=dict)


class Script:
    """Sets the scene for the accelerators of one node, from whatever process."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "accelerators"
        self.kernel_log = self.folder / "kmsg"

    def log(self, line: str) -> None:
        """The kernel says this, as a whole line."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.kernel_log.open("ab") as log:
            log.write(line.rstrip("\n").encode() + b"\n")

    def xid(self, code: int, index: int = 0, *, pid: int | None = None, says: str = "simulated") -> None:
        """The driver of NVIDIA's tells of a fault of one device."""
        who = "'<unknown>'" if pid is None else str(pid)
        self.log(f"NVRM: Xid (PCI:{pci_of(index)}): {code}, pid={who}, name=simulated, {says}")

    def sxid(self, code: int, *, is_fatal: bool = True, switch: int = 0) -> None:
        """The driver of NVIDIA's switches tells of one."""
        word = "Fatal" if is_fatal else "Non-fatal"
        self.log(f"nvidia-nvswitch{switch}: SXid (PCI:0000:{0xC0 + switch:02x}:00.0): {code}, {word}, Link 0 simulated")

    def neuron_error(self, name: str, index: int = 0) -> None:
        """The driver of Neuron's tells of a fault of one device: ``HBM_UNCORRECTABLE_ERROR``, for one."""
        self.log(f"neuron:simulated: NEURON_HW_ERR={name} nd-id={index} nc-id=0 serial-num={index:016x} action=TERMINATE_INSTANCE")

    def lose(self, index: int, *, for_good: bool = False) -> None:
        """The device is there no more, and no line says so. It is back after the host's next start, unless it is lost for good."""
        with self.changed() as play:
            play.lost[str(index)] = for_good

    def restore(self, index: int) -> None:
        with self.changed() as play:
            play.lost.pop(str(index), None)

    def count(self, name: str, device: int, value: int) -> None:
        """A counter of the device stands at this now (``readings.COUNTS`` has the names); the host's next start sets it to 0."""
        with self.changed() as play:
            play.counts.setdefault(name, {})[str(device)] = value

    def show(self, name: str, device: int, value: float) -> None:
        """A gauge of the device (``readings.GAUGES``) shows this."""
        with self.changed() as play:
            play.gauges.setdefault(name, {})[str(device)] = value

    def silence(self, is_silent: bool = True) -> None:
        """Nothing can be read of any device, as when the vendor's monitor has died."""
        with self.changed() as play:
            play.is_silent = is_silent

    def play(self) -> Play:
        """As it stands. An unreadable file is a silent play: what cannot be read is not healthy."""
        try:
            return Play(**json.loads((self.folder / "devices.json").read_text()))
        except FileNotFoundError:
            return Play()
        except (OSError, ValueError, TypeError):
            return Play(is_silent=True)

    @contextmanager
    def changed(self) -> Iterator[Play]:
        """The play, to be changed by one hand at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            play = self.play()
            yield play
            draft = self.folder / "devices.draft"
            draft.write_text(json.dumps(asdict(play)))
            draft.replace(self.folder / "devices.json")


def pci_of(index: int) -> str:
    """The bus address of a simulated device, as its driver writes it."""
    return f"0000:{0x10 + index:02x}:00"
