"""Exports are written by a program of their own, which outlives the task that has started it: they may take longer than any task may.

A run's folder says all about it, ``<home>/exports/<id>``: ``process`` (process id and its start, in the kernel's ticks), ``out``, ``err``. Any
worker on the machine can look; a worker elsewhere finds nothing and begins anew, which writes the same files once more.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

LIMIT = timedelta(hours=2)
"""An export that takes longer is ended: its store hangs."""
_MODULE = "everstep.checkpoint.export"
_ROOT = Path(__file__).parents[1]
_TAIL = 2_000
_KEPT = 50
"""So many folders of ended runs stay, for whoever looks for the reason of a failure."""


@dataclass(frozen=True)
class ExportOrder:
    """``source`` is the object store's ``checkpoints``; ``target`` a URL or a folder."""

    id: str
    source: str
    namespace: str
    step: int
    form: str
    target: str


@dataclass(frozen=True)
class Running:
    """Its program is at work."""


@dataclass(frozen=True)
class Written:
    """``told`` is what the program says of it."""

    told: Mapping[str, Any]


@dataclass(frozen=True)
class Broken:
    """``why`` is the end of what the program has said."""

    why: str


@dataclass(frozen=True)
class Vanished:
    """No program, and no word of how it ended."""

    tries: int


Progress = Running | Written | Broken | Vanished


@dataclass
class Exports:
    """Those that this machine's workers have begun. ``environ`` is what the programs get: the keys of the store, and nothing of ours."""

    home: Path
    environ: Mapping[str, str]
    limit: timedelta = LIMIT
    program: tuple[str, ...] = (sys.executable, "-m", _MODULE)
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self, order: ExportOrder) -> None:
        """Starts the program, unless it runs. Raises OSError."""
        if isinstance(self.look(order.id), Running):
            return
        folder = self._folder(order.id)
        tries = _tries(folder) + 1
        self._forget_old_ones()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "tries").write_text(str(tries))
        command = ["timeout", "--kill-after=10", str(int(self.limit.total_seconds())), *self.program, *_arguments(order)]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(self.environ), cwd=_ROOT, start_new_session=True
            )
        self._children[order.id] = child
        draft = folder / "process.draft"
        draft.write_text(f"{child.pid} {_began(child.pid)}")
        draft.rename(folder / "process")

    def look(self, export_id: str) -> Progress:
        """How far an export is."""
        child = self._children.get(export_id)
        if child is not None and child.poll() is None:
            return Running()
        self._children.pop(export_id, None)
        folder = self._folder(export_id)
        if child is None and _runs(folder):
            return Running()
        told = _last_line(folder)
        if told is not None and (child is None or child.returncode == 0):
            return Written(told)
        words = _read(folder / "err").strip()[-_TAIL:]
        if child is None and not words:
            return Vanished(_tries(folder))
        return Broken(words or f"its program ended with exit code {child.returncode if child else '?'} without a word")

    def _folder(self, export_id: str) -> Path:
        return self.home / "exports" / export_id

    def _forget_old_ones(self) -> None:
        ended = [one for one in (self.home / "exports").glob("*") if not _runs(one)]
        for folder in sorted(ended, key=lambda one: one.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)


def _arguments(order: ExportOrder) -> list[str]:
    named = {
        "source": order.source,
        "namespace": order.namespace,
        "step": str(order.step),
        "format": order.form,
        "to": order.target,
    }
    return [word for name, value in named.items() for word in (f"--{name}", value)]


def _tries(folder: Path) -> int:
    return int(_read(folder / "tries") or 0)


def _runs(folder: Path) -> bool:
    """Whether the run's very process lives: a number that was given to another one since has another start."""
    pid, _, began = _read(folder / "process").partition(" ")
    return bool(pid) and began != "" and _began(int(pid)) == began


def _began(pid: int) -> str:
    """When a process started, in ticks since the machine's boot; empty if it has ended, also if nobody has collected it yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else os.fsdecode(fields[19])


def _last_line(folder: Path) -> Mapping[str, Any] | None:
    """The program's result: a JSON object, on its last line."""
    lines = _read(folder / "out").strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
