"""Who holds a metadata shard asks until its step is complete, and then says so to all nodes: so everybody knows when older steps may go.

The node that wrote the step is asked of first; the holders of its replicas speak only if nothing has been heard of it for a while. Telling it twice
changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from agent.memory_tier.held import Change
from everstep.shards import Seal, ShardKind
from everstep.tiers import CopyStatus

Key = tuple[str, int, str]
"""Namespace, step, save."""


@dataclass(frozen=True)
class Pauses:
    """Seconds: before the first look, the longest between two, before a replica's holder looks, until it is given up, until no more is told."""

    first_s: float = 0.05
    longest_s: float = 2.0
    echo_s: float = 3.0
    give_up_s: float = 900.0
    settle_s: float = 60.0


@dataclass
class _Awaited:
    seal: Seal
    due: float
    until: float
    pause_s: float


class Announcer:
    """A thread of its own. ``is_complete`` answers for the step of a metadata shard; ``tell`` tells of one, again until it returns that that was all."""

    def __init__(
        self,
        *,
        node: str,
        is_complete: Callable[[Seal], bool],
        tell: Callable[[Seal], bool],
        clock: Callable[[], float],
        pauses: Pauses,
    ) -> None:
        self._node = node
        self._is_complete = is_complete
        self._tell = tell
        self._clock = clock
        self._pauses = pauses
        self._woken = threading.Condition()
        self._awaited: dict[Key, _Awaited] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self, held: Iterable[Seal]) -> None:
        """``held``: what is here already; the newest metadata shard of each namespace is looked at once more."""
        newest: dict[str, Seal] = {}
        for seal in held:
            if seal.kind is ShardKind.METADATA and seal.written_at >= newest.get(seal.namespace, seal).written_at:
                newest[seal.namespace] = seal
        with self._woken:
            for seal in newest.values():
                self._await(seal)
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
        self._thread.start()

    def changed(self, change: Change) -> None:
        """A shard has come or gone on this node. Does not block."""
        seal = change.seal
        with self._woken:
            if change.status is not CopyStatus.SEALED:
                if seal.kind is ShardKind.METADATA:
                    self._awaited.pop(_key(seal), None)
            elif seal.kind is ShardKind.METADATA:
                self._await(seal)
            else:
                self._hurry(seal)
            self._woken.notify_all()

    def heard(self, key: Key) -> None:
        """Another node has announced it."""
        with self._woken:
            self._awaited.pop(key, None)

    def close(self) -> None:
        with self._woken:
            self._is_closed = True
            self._woken.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _await(self, seal: Seal) -> None:
        pause_s = self._pauses.first_s if seal.origin == self._node else self._pauses.echo_s
        now = self._clock()
        self._awaited[_key(seal)] = _Awaited(seal, now + pause_s, now + self._pauses.give_up_s, self._pauses.first_s)

    def _hurry(self, seal: Seal) -> None:
        """A data shard may have been the last that was missing."""
        awaited = self._awaited.get(_key(seal))
        if awaited is not None and awaited.seal.origin == self._node:
            awaited.due = min(awaited.due, self._clock())

    def _run(self) -> None:
        while (due := self._next_due()) is not None:
            for awaited in due:
                self._look(awaited)

    def _next_due(self) -> list[_Awaited] | None:
        """Waits for some; None at the end."""
        with self._woken:
            while not self._is_closed:
                now = self._clock()
                due = [awaited for awaited in self._awaited.values() if awaited.due <= now]
                if due:
                    return due
                nearest = min((awaited.due for awaited in self._awaited.values()), default=None)
                self._woken.wait(None if nearest is None else nearest - now)
        return None

    def _look(self, awaited: _Awaited) -> None:
        is_complete = self._is_complete(awaited.seal)
        now = self._clock()
        with self._woken:
            if self._awaited.get(_key(awaited.seal)) is not awaited:
                return
            if is_complete or now >= awaited.until:
                del self._awaited[_key(awaited.seal)]
            else:
                awaited.due = now + awaited.pause_s
                awaited.pause_s = min(self._pauses.longest_s, awaited.pause_s * 1.6)
        if is_complete and not self._tell(awaited.seal):
            with self._woken:
                until, due = min(awaited.until, now + self._pauses.settle_s), now + self._pauses.longest_s
                if due < until and not self._is_closed:
                    self._awaited.setdefault(_key(awaited.seal), replace(awaited, due=due, until=until))


def _key(seal: Seal) -> Key:
    return seal.namespace, seal.step, seal.save
