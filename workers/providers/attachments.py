"""What is attached to a local host: directories that outlive it, each linked into one host's directory at a time.

A volume is ``<home>/volumes/<volume id>``; beside it, ``<volume id>.host`` names the host that has it. That note is made exclusively, so two
hosts cannot both have a volume, and one of a host that is no more is void. The host's processes find the directory of links in
``EVERSTEP_VOLUMES``, with a link by the volume's id and one by the name of its device (``xvdf``).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workers.providers.base import InUse, Refused, Volume

FOLDER: Final = "attached"
_DEVICES: Final = "devices.json"


@dataclass(frozen=True)
class Attachments:
    """``place`` is the host's directory, ``store`` where volumes and the notes of who has them are kept."""

    place: Path
    store: Path

    @property
    def directory(self) -> Path:
        return self.place / FOLDER

    def volumes(self) -> tuple[Volume, ...]:
        return tuple(
            Volume(volume_id, device) for volume_id, device in sorted(self._devices().items()) if volume_id.startswith("vol-")
        )

    def interfaces(self) -> tuple[str, ...]:
        return tuple(sorted(name for name in self._devices() if name.startswith("eni-")))

    def attach_volume(self, volume: Volume) -> None:
        """Raises InUse, Refused."""
        if not volume.id.startswith("vol-") or "/" in volume.id:
            message = f"{volume.id!r} is no volume id"
            raise Refused(message)
        self._take(volume.id)
        for other, device in self._devices().items():
            if device == volume.device and other != volume.id:
                message = f"{volume.device} of {self.place.name} is {other}"
                raise InUse(message)
        (self.store / volume.id).mkdir(exist_ok=True)
        for name in (volume.id, Path(volume.device).name):
            _link(self.directory / name, self.store / volume.id)
        self._note({**self._devices(), volume.id: volume.device})

    def detach_volume(self, volume_id: str) -> None:
        devices = self._devices()
        device = devices.pop(volume_id, None)
        for name in (volume_id, *((Path(device).name,) if device else ())):
            (self.directory / name).unlink(missing_ok=True)
        self._note(devices)
        self._leave(volume_id)

    def attach_interface(self, interface_id: str) -> None:
        """Raises InUse."""
        self._take(interface_id)
        self._note({**self._devices(), interface_id: ""})

    def give_back(self) -> None:
        """The host ends: others may have what it had."""
        for name in self._devices():
            self._leave(name)

    def _take(self, name: str) -> None:
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        note = self.store / f"{name}.host"
        own = self.store / f".{name}.{self.place.name}"
        own.write_text(self.place.name)
        if not _claim(note, own):
            holder = _text(note)
            if holder and not (self.place.parent / holder / "host.json").exists():
                note.unlink(missing_ok=True)
                _claim(note, own)
        own.unlink()
        if _text(note) != self.place.name:
            message = f"{name} is attached to {_text(note)}"
            raise InUse(message)

    def _leave(self, name: str) -> None:
        note = self.store / f"{name}.host"
        if _text(note) == self.place.name:
            note.unlink(missing_ok=True)

    def _devices(self) -> dict[str, str]:
        """Names of devices by what is attached; an interface has none."""
        with suppress(OSError, ValueError):
            found: dict[str, str] = json.loads((self.directory / _DEVICES).read_text())
            return found
        return {}

    def _note(self, devices: dict[str, str]) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        fresh = self.directory / f"{_DEVICES}.new"
        fresh.write_text(json.dumps(devices))
        fresh.replace(self.directory / _DEVICES)


def _claim(note: Path, own: Path) -> bool:
    """Exclusive, and the note is whole from the start."""
    try:
        note.hardlink_to(own)
    except FileExistsError:
        return False
    return True


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
