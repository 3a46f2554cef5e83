"""What the control plane notes of hosts of its own: which claim has which host, and which hosts are in trouble.

The claim on the host is the truth. The note is there for a host that does not answer: it is made before the host is touched, and kept until the
host is clean, so a claim without a note is on no host that this control plane has touched. All workers of the slow lane share this folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

_FIRST_S: Final = 30.0
_LONGEST_S: Final = 1800.0
_MOST_DOUBLINGS: Final = 6


@dataclass(frozen=True)
class Note:
    """A claim as it is written on its host and beside it here."""

    claim: str
    instance_id: str
    host: str
    address: str
    instance_type: str
    zone: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    start: int = 0
    image: str | None = None
    volumes: dict[str, str] = field(default_factory=dict)
    interfaces: list[str] = field(default_factory=list)
    boot: str | None = None

    @classmethod
    def of(cls, told: dict[str, Any]) -> Note:
        """Raises TypeError if a member is missing or unknown."""
        return cls(**told)


@dataclass(frozen=True)
class Trouble:
    """Why a host was not taken, and until when it is left alone. ``is_for_operator``: time alone will not help."""

    why: str
    until: float
    times: int
    is_for_operator: bool = False


@dataclass(frozen=True)
class Notes:
    folder: Path

    def all(self) -> dict[str, Note]:
        """By the names of their hosts."""
        found = {}
        for path in sorted((self.folder / "claims").glob("*.json")):
            with suppress(OSError, ValueError, TypeError):  # gone meanwhile; a note is written whole
                found[path.stem] = Note.of(json.loads(path.read_text()))
        return found

    def of_claim(self, claim: str) -> Note | None:
        return next((note for note in self.all().values() if note.claim == claim), None)

    def keep(self, note: Note) -> None:
        _write(self.folder / "claims" / f"{note.host}.json", asdict(note))

    def forget(self, note: Note) -> None:
        """Nothing happens if the host has another claim by now."""
        with self.alone():
            if self.all().get(note.host, note).claim == note.claim:
                (self.folder / "claims" / f"{note.host}.json").unlink(missing_ok=True)

    def reserve(self, note: Note) -> Note | None:
        """Notes a claim for a host, before that is touched. The note that holds then: of this claim elsewhere, or None if another has the host."""
        with self.alone():
            held = self.of_claim(note.claim)
            if held is not None:
                return held
            if note.host in self.all():
                return None
            self.keep(note)
            return note

    def trouble(self, host: str) -> Trouble | None:
        with suppress(OSError, ValueError, TypeError):
            return Trouble(**json.loads((self.folder / "trouble" / f"{host}.json").read_text()))
        return None

    def remember(self, host: str, why: str, *, now: float, is_for_operator: bool) -> None:
        """A host that was not fit is left alone for a while, twice as long each time."""
        before = self.trouble(host)
        times = before.times + 1 if before else 1
        pause_s = min(_LONGEST_S, _FIRST_S * 2 ** min(times - 1, _MOST_DOUBLINGS))
        _write(self.folder / "trouble" / f"{host}.json", asdict(Trouble(why, now + pause_s, times, is_for_operator)))

    def clear(self, host: str) -> None:
        (self.folder / "trouble" / f"{host}.json").unlink(missing_ok=True)

    @contextmanager
    def alone(self, host: str | None = None) -> Iterator[None]:
        """One at a time: of reservations, or of what is done to one host."""
        folder = self.folder / "locks"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / (host or ".all")).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _write(path: Path, content: dict[str, Any]) -> None:
    """In one piece: a crash leaves the whole note or none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    fresh.write_text(json.dumps(content))
    fresh.replace(path)
