"""What has become of this node's copies, as the control plane is told: gathered by step, and told anew to every new agent.

What has been told to be here is kept on disk before it is told. So a tier that was killed can say of what it does not find again that it is gone, and the
control plane does not go on counting copies that nobody has.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.memory_tier.held import Change
from everstep.shards import Seal, ShardKind
from everstep.tiers import CopiesReport, CopyStatus, CopyTold

GATHER_S = 0.1
_MOST_GONE = 2000
"""Copies that went lately are told again as well: the agent that was told may have ended before it told anybody."""


@dataclass(frozen=True)
class _Copy:
    namespace: str
    step: int
    save: str
    index: int


class Telling:
    """``changed`` is the store's listener and never blocks; a thread tells. ``path`` is the file that survives."""

    def __init__(self, path: Path, *, report: Callable[[CopiesReport], None], now: Callable[[], float]) -> None:
        self._path = path
        self._report = report
        self._now = now
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._held, self._gone = _load(path)
        self._changes: list[Change] = []
        self._any = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After what has happened by now has been told."""
        self._stopped.set()
        self._any.set()
        if self._thread.is_alive():
            self._thread.join()

    def changed(self, change: Change) -> None:
        with self._lock:
            self._changes.append(change)
        self._any.set()

    def everything(self, seals: Iterable[Seal], unverified: Iterable[Seal]) -> tuple[CopiesReport, ...]:
        """``seals`` can be had; of ``unverified`` nobody knows yet; all else that was told is gone."""
        present = list(seals)
        known = {_copy(seal) for seal in (*present, *unverified)}
        with self._lock:
            for copy in [one for one in self._held if one not in known]:
                self._held.discard(copy)
                self._gone[copy] = CopyStatus.DROPPED
            gone = dict(self._gone)
        left = [(copy, CopyTold(copy.index, status)) for copy, status in gone.items()]
        return (*self._reports(left), *self._reports([_sealed(seal) for seal in present], present))

    def flush(self) -> None:
        """Tells now what has happened by now, in the caller's thread."""
        with self._telling:
            self._tell()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._any.wait()
            self._stopped.wait(GATHER_S)
            self._any.clear()
            self.flush()
        self.flush()

    def _tell(self) -> None:
        with self._lock:
            changes, self._changes = self._changes, []
            for change in changes:
                self._note(change)
            if changes:
                self._keep()
        last = {_copy(change.seal): change for change in changes}
        told = [
            _sealed(change.seal) if change.status is CopyStatus.SEALED else (copy, CopyTold(copy.index, change.status))
            for copy, change in last.items()
        ]
        for report in self._reports(told, [change.seal for change in last.values()]):
            self._report(report)

    def _note(self, change: Change) -> None:
        copy = _copy(change.seal)
        if change.status is CopyStatus.SEALED:
            self._held.add(copy)
            self._gone.pop(copy, None)
            return
        self._held.discard(copy)
        self._gone[copy] = change.status
        while len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _keep(self) -> None:
        """As well as can be: without it the control plane knows less after a crash of this process, and nothing is lost."""
        kept = {
            "held": [[one.namespace, one.step, one.save, one.index] for one in self._held],
            "gone": [[one.namespace, one.step, one.save, one.index, status] for one, status in self._gone.items()],
        }
        with contextlib.suppress(OSError):
            draft = self._path.with_suffix(".draft")
            draft.write_text(json.dumps(kept))
            draft.replace(self._path)

    def _reports(self, told: Iterable[tuple[_Copy, CopyTold]], seals: Sequence[Seal] = ()) -> Iterator[CopiesReport]:
        """``seals`` are those of the copies, where they are known."""
        world_sizes, youngest = _world_sizes(seals), _youngest(seals)
        steps: dict[tuple[str, int, str], list[CopyTold]] = {}
        for copy, what in told:
            steps.setdefault((copy.namespace, copy.step, copy.save), []).append(what)
        at = self._now()
        for (namespace, step, save), copies in steps.items():
            of = (namespace, step, save)
            written_at = youngest.get(of, 0.0)
            yield CopiesReport(namespace, step, tuple(copies), save, world_sizes.get(of), at=at, written_at=written_at)


def _sealed(seal: Seal) -> tuple[_Copy, CopyTold]:
    return _copy(seal), CopyTold(seal.index, CopyStatus.SEALED, seal.size, seal.digest)


def _copy(seal: Seal) -> _Copy:
    return _Copy(seal.namespace, seal.step, seal.save, seal.index)


def _world_sizes(seals: Iterable[Seal]) -> dict[tuple[str, int, str], int]:
    return {(seal.namespace, seal.step, seal.save): seal.index for seal in seals if seal.kind is ShardKind.METADATA}


def _youngest(seals: Iterable[Seal]) -> dict[tuple[str, int, str], float]:
    found: dict[tuple[str, int, str], float] = {}
    for seal in seals:
        of = (seal.namespace, seal.step, seal.save)
        found[of] = max(seal.written_at, found.get(of, 0.0))
    return found


def _load(path: Path) -> tuple[set[_Copy], dict[_Copy, CopyStatus]]:
    try:
        kept = json.loads(path.read_text())
        return {_Copy(*one) for one in kept["held"]}, {_Copy(*one[:4]): CopyStatus(one[4]) for one in kept["gone"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set(), {}
