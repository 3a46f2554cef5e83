"""Namespaces that clients made at the door: how many shards a step has, and how many steps stay. They survive the tier's process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from everstep.shards import NAMESPACE

STEPS_RETAINED = 3
"""What AWS's package asks for when it makes a namespace."""


@dataclass(frozen=True)
class Namespace:
    """``num_ranks`` counts the metadata shard as well. It is that of the first writer, and goes stale when the job is resized."""

    name: str
    num_ranks: int
    steps_retained: int = STEPS_RETAINED


class Namespaces:
    """Thread-safe. Below ``folder`` lies one file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._known: dict[str, Namespace] = {}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found = Namespace(**json.loads(path.read_text()))
                if path.name == f"{found.name}.json":
                    self._known[found.name] = found

    def create(self, name: str, *, num_ranks: int, steps_retained: int = STEPS_RETAINED) -> Namespace:
        """As the last call says, for a namespace that is there too. Raises ValueError for a name or a number that cannot be."""
        if not NAMESPACE.fullmatch(name) or num_ranks < 1 or steps_retained < 1:
            message = f"namespace {name!r} with num_ranks {num_ranks} and steps_retained {steps_retained} cannot be"
            raise ValueError(message)
        made = Namespace(name, num_ranks, steps_retained)
        with self._lock:
            path = self._path(name)
            draft = path.with_suffix(".draft")
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_text(json.dumps(asdict(made)))
            draft.replace(path)
            self._known[name] = made
        return made

    def get(self, name: str) -> Namespace | None:
        with self._lock:
            return self._known.get(name)

    def delete(self, name: str) -> bool:
        """False when there was none."""
        with self._lock:
            known = self._known.pop(name, None)
            if known is not None:
                self._path(name).unlink(missing_ok=True)
        return known is not None

    def all(self) -> Mapping[str, Namespace]:
        with self._lock:
            return dict(self._known)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"
