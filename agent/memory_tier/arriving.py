"""Replicas that peers push: whole, or in stripes by several streams at once. Only when all bytes are there and the digest is right is one sealed.

The streams of a push take turns, in the order of the bytes: while one is read the kernel receives for the others, and a stripe is hashed where it has just
been written, in a processor's cache. (Measured: bytes that have left it take three times as long.) All streams of a push end alike: with its seal, or with
the error of the first that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from agent.memory_tier.budget import NoRoom
from agent.memory_tier.hashing import Digest
from agent.memory_tier.held import Corrupt, replica_of
from agent.memory_tier.segments import Segment
from agent.memory_tier.store import Store
from agent.memory_tier.stripes import Attempt, Stream
from everstep.shards import Seal

_FAILED = 64
"""So many attempts are remembered that have failed: a stream of one that comes after the others is told at once."""
PATIENCE_S = 30.0
"""How long a stream waits for another one's next stripe."""
Fill = Callable[[memoryview, Callable[[memoryview], object]], None]
"""Fills a view, and shows each piece of it as it has come."""


class Unfinished(Exception):
    """Another stream of the same push ended early, or does not come. The words are for the peer's log."""


@dataclass(eq=False)
class _Arrival:
    """``turn`` guards everything, and is told of every change. What is received belongs to the stream whose turn it is, without it."""

    turn: threading.Condition = field(default_factory=threading.Condition)
    joined: set[int] = field(default_factory=set)
    """No two write the same stripes: what the one has hashed the other would write over."""
    streams: int = 0
    segment: Segment | None = None
    begun: Digest = field(default_factory=Digest)
    """Of all bytes that have come: where the next stripe begins."""
    sealed: Seal | None = None
    error: BaseException | None = None


class Arrivals:
    """Thread-safe."""

    def __init__(self, store: Store, *, patience_s: float = PATIENCE_S) -> None:
        self._store = store
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._arrivals: dict[tuple[Seal, Attempt], _Arrival] = {}
        self._failed: dict[tuple[Seal, Attempt], Exception] = {}

    def take_in(self, seal: Seal, stream: Stream, fill: Fill) -> Seal:
        """Has ``fill`` write one stream's stripes of a replica, piece by piece; returns when all streams have brought theirs and it is sealed.

        ``fill`` is first called with nothing: whoever waits to be asked for a body can be told to send it. It is not called at all for a shard that is here
        already, the same: nobody need send it again.

        Raises:
            NoRoom: nothing was written.
            Corrupt: the whole did not have the digest of the seal; it is forgotten.
            Unfinished: it is forgotten.
            ValueError: this stream is here already.
        """
        found = self._join(seal, stream)
        if isinstance(found, Seal):
            return found
        try:
            return self._take_in(found, seal, stream, fill)
        except BaseException as error:
            self._fail(found, error)
            raise
        finally:
            self._leave(found, seal, stream.attempt)

    def end(self) -> None:
        """All that is under way ends with Unfinished."""
        with self._lock:
            arrivals = list(self._arrivals.values())
        for arrival in arrivals:
            self._fail(arrival, Unfinished("the memory tier ends"))

    def _join(self, seal: Seal, stream: Stream) -> _Arrival | Seal:
        """What is here is looked for by the first stream alone: the others must not be told of what has come since by another attempt."""
        with self._lock:
            is_begun = (seal, stream.attempt) in self._arrivals
        held = None if is_begun else self._store.find(seal.namespace, seal.index, seal.step, seal.save)
        if held is not None and (held.digest, held.size) == (seal.digest, seal.size):
            return held
        with self._lock:
            if (failed := self._failed.get((seal, stream.attempt))) is not None:
                raise _of_all(failed)
            arrival = self._arrivals.setdefault((seal, stream.attempt), _Arrival())
            if stream.number in arrival.joined:
                message = f"stream {stream} of this shard is here already"
                raise ValueError(message)
            arrival.joined.add(stream.number)
            arrival.streams += 1
            return arrival

    def _take_in(self, arrival: _Arrival, seal: Seal, stream: Stream, fill: Fill) -> Seal:
        with arrival.turn:
            if arrival.segment is None:
                arrival.segment = self._store.take(seal.namespace, seal.index, seal.step, seal.size)
        body = arrival.segment.body
        fill(body[:0], arrival.begun.add)
        for start, end in stream.spans(seal.size):
            self._await(arrival, lambda start=start: arrival.begun.nbytes == start)  # type: ignore[misc]
            fill(body[start:end], arrival.begun.add)
            if end == seal.size:
                arrival.sealed = self._store.seal(arrival.segment, replica_of(seal), begun=arrival.begun)
            with arrival.turn:
                arrival.turn.notify_all()
        self._await(arrival, lambda: arrival.sealed is not None)
        return cast("Seal", arrival.sealed)

    def _await(self, arrival: _Arrival, is_so: Callable[[], bool]) -> None:
        """Raises the error of another stream, or Unfinished: no byte of the others has come for too long."""
        with arrival.turn:
            seen = -1
            while seen != arrival.begun.nbytes:
                seen = arrival.begun.nbytes
                arrival.turn.wait_for(lambda: arrival.error is not None or is_so(), self._patience_s)
                if arrival.error is not None:
                    raise _of_all(arrival.error)
                if is_so():
                    return
        message = (
            f"no byte of another stream of the replica came for {self._patience_s:g} s, which is to bring those from {seen} on"
        )
        raise Unfinished(message)

    def _fail(self, arrival: _Arrival, error: BaseException) -> None:
        with arrival.turn:
            arrival.error = arrival.error or error
            arrival.turn.notify_all()

    def _leave(self, arrival: _Arrival, seal: Seal, attempt: Attempt) -> None:
        """The last stream gives back what was not sealed: before that another one may still write there."""
        with self._lock:
            arrival.streams -= 1
            if arrival.streams:
                return
            del self._arrivals[seal, attempt]
            if arrival.error is not None:
                self._failed[seal, attempt] = _of_all(arrival.error)
                if len(self._failed) > _FAILED:
                    del self._failed[next(iter(self._failed))]
        if arrival.segment is not None and arrival.sealed is None:
            self._store.abandon(arrival.segment)


def _of_all(error: BaseException) -> Exception:
    """What the streams raise in which nothing has gone wrong: a new one each, which keeps nothing of theirs alive."""
    if isinstance(error, NoRoom | Corrupt | Unfinished):
        return type(error)(str(error))
    return Unfinished(f"another stream of the replica ended early: {str(error) or type(error).__name__}")
