"""Where training went back, and when: what was saved beyond that point before is nobody's step any more, wherever a copy of it turns up.

A node that was away when training went back still has its copies, and tells of them when it is there again. Kept on disk beside the shards, so that
they are known for what they are after a restart too.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from everstep.shards import Seal


class Discard(NamedTuple):
    """Steps after ``after`` that were written until ``at``, in Unix seconds."""

    after: int
    at: float


class Discards:
    """Thread-safe. ``path`` is the file that survives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._known = _load(path)

    def mark(self, namespace: str, after: int, at: float) -> None:
        with self._lock:
            others = [one for one in self._known.get(namespace, ()) if not (one.after >= after and one.at <= at)]
            self._known[namespace] = (*others, Discard(after, at))
            draft = self._path.with_suffix(".draft")
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_text(json.dumps(self._known))
            draft.replace(self._path)

    def covers(self, seal: Seal) -> bool:
        """Whether a shard is of a step that was given up."""
        with self._lock:
            known = self._known.get(seal.namespace, ())
        return any(seal.step > one.after and seal.written_at <= one.at for one in known)

    def knows(self, namespace: str, after: int, at: float) -> bool:
        """Whether all that it covers is covered already."""
        return any(one.after <= after and one.at >= at for one in self.marks(namespace))

    def marks(self, namespace: str) -> tuple[Discard, ...]:
        with self._lock:
            return self._known.get(namespace, ())

    def forget(self, namespace: str) -> None:
        """The namespace has ended."""
        with self._lock:
            self._known.pop(namespace, None)


def _load(path: Path) -> dict[str, tuple[Discard, ...]]:
    try:
        told = json.loads(path.read_text())
        return {str(namespace): tuple(Discard(int(after), float(at)) for after, at in marks) for namespace, marks in told.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
