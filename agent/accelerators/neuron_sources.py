"""Where Neuron's devices can be read: ``neuron-ls``, and the driver's tree in sysfs in whatever layout it has."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/devices/virtual/neuron_device")
DEV = Path("/dev")
_LS_S = 20.0
_MIB = 2**20
_MOST_DEPTH = 5
_FORMS = (("--json-output",), ("--output-format", "json"))
"""Tools up to 2.33 write a list of devices; newer ones an object that has such a list."""


@dataclass(frozen=True)
class Listed:
    """A device as ``neuron-ls`` lists it."""

    index: int
    cores: int
    memory_mib: int
    pci: str | None
    links: int


class NeuronLs:
    """Runs ``neuron-ls``. It remembers in which form its tools write."""

    def __init__(self, program: str, environment: Mapping[str, str]) -> None:
        self._program = program
        self._environment = environment
        self._forms = list(_FORMS)

    def listed(self) -> list[Listed]:
        """Raises ValueError: it cannot be run, or says nothing that can be read; the message says what."""
        troubles = []
        for form in list(self._forms):
            try:
                found = devices_in(self._said(form))
            except ValueError as error:
                troubles.append(str(error))
                continue
            self._forms.sort(key=lambda known, worked=form: known != worked)  # type: ignore[misc]
            return found
        raise ValueError(troubles[0])

    def _said(self, form: tuple[str, ...]) -> str:
        try:
            done = subprocess.run(
                [self._program, *form],
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LS_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            message = f"neuron-ls cannot be run: {error}"
            raise ValueError(message) from error
        if done.returncode != 0:
            message = f"neuron-ls ended with {done.returncode}: {' '.join((done.stderr or done.stdout).split())[-200:]}"
            raise ValueError(message)
        return done.stdout


def devices_in(text: str) -> list[Listed]:
    """Raises ValueError: it is no JSON, or lists no devices in a form that is known."""
    try:
        document = json.loads(text)
    except ValueError as error:
        message = f"neuron-ls speaks no JSON: {text[:80]!r}"
        raise ValueError(message) from error
    entries = document if isinstance(document, list) else _list_in(document)
    try:
        return sorted((_listed(entry) for entry in entries), key=lambda device: device.index)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"neuron-ls lists a device in a form that is not known: {error!r}"
        raise ValueError(message) from error


def _list_in(document: Any) -> list[Any]:
    """The list of devices, whatever it is called: the one whose members say which device they are."""
    if isinstance(document, dict):
        for value in document.values():
            if isinstance(value, list) and all(isinstance(entry, dict) and "neuron_device" in entry for entry in value):
                return value
    message = "neuron-ls lists no devices in a form that is known"
    raise ValueError(message)


def _listed(entry: Any) -> Listed:
    return Listed(
        index=int(entry["neuron_device"]),
        cores=int(entry.get("nc_count") or 1),
        memory_mib=int(entry.get("memory_size") or 0) // _MIB,
        pci=entry.get("bdf") or None,
        links=len(entry.get("connected_to") or ()),
    )


class Sysfs:
    """The driver's tree. 2.31 moved what older ones had elsewhere, so a name is looked for in the whole of a device's part of it, once."""

    def __init__(self, root: Path = SYSFS) -> None:
        self._root = root
        self._places: dict[tuple[int, str], Path] = {}

    def indices(self) -> list[int]:
        """Of all devices. Raises OSError: there is no such tree."""
        names = (entry.name.removeprefix("neuron") for entry in self._root.iterdir() if entry.name.startswith("neuron"))
        return sorted(int(name) for name in names if name.isdigit())

    def count(self, index: int, name: str) -> int | None:
        """A counter's total since the driver was loaded; None: the driver has no such counter, or it cannot be read."""
        text = self.text(index, name)
        try:
            return None if text is None else int(text.split()[0])
        except (ValueError, IndexError):
            return None

    def text(self, index: int, name: str) -> str | None:
        place = self._places.get((index, name)) or self._found(index, name)
        if place is None:
            return None
        try:
            return place.read_text(errors="replace").strip()
        except OSError:
            self._places.pop((index, name), None)
            return None

    def reset(self, index: int) -> None:
        """Raises OSError."""
        (self._root / f"neuron{index}" / "reset").write_text("1")

    def _found(self, index: int, name: str) -> Path | None:
        for entry in _below(self._root / f"neuron{index}", _MOST_DEPTH):
            if entry.name == name:
                place = entry / "total" if entry.is_dir() else entry
                if place.is_file():
                    self._places[index, name] = place
                    return place
        return None


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Breadth first, so that what a device has comes before what its cores have. Links lead elsewhere."""
    level = [folder]
    for _ in range(depth):
        below: list[Path] = []
        for parent in level:
            try:
                entries = sorted(parent.iterdir())
            except OSError:
                continue
            yield from entries
            below += [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
        level = below
