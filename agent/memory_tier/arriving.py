"""Replicas that peers push: whole, or in parts that travel at once into one segment. Only when all bytes are there and the digest is right is it sealed.

Bytes are hashed in their order while others come: the next ones as they are received, those that came too early by whoever is done with his part.

What never becomes whole is given back: at once when a part is torn, after a while when the rest does not come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.memory_tier.hashing import Digest
from agent.memory_tier.held import replica_of
from agent.memory_tier.segments import Segment
from agent.memory_tier.store import Store
from everstep.shards import Seal

PATIENCE_S = 60.0
"""How long the first part of a replica waits for another one."""
_PIECE = 1 << 20
"""So much is received and then hashed, while it is in a processor's cache."""


@dataclass(eq=False)
class _Arrival:
    touched_at: float
    making: threading.Lock = field(default_factory=threading.Lock)
    segment: Segment | None = None
    writers: int = 0
    spans: set[tuple[int, int]] = field(default_factory=set)
    is_broken: bool = False
    asked: list[tuple[int, int]] = field(default_factory=list)
    begun: Digest = field(default_factory=Digest)
    """Of the first bytes."""
    is_hashing: bool = False
    """One at a time."""
    is_twofold: bool = False
    """Whether two writers had bytes in common: what the one has hashed the other may have overwritten."""

    def is_whole(self, size: int) -> bool:
        end = 0
        for start, stop in sorted(self.spans):
            if start > end:
                return False
            end = max(end, stop)
        return end == size

    def hashable(self) -> int:
        """Up to where there are bytes that are not hashed yet, behind those that are; 0 if there are none."""
        done = self.begun.nbytes
        return max((stop for start, stop in self.spans if start <= done < stop), default=0)


class Arrivals:
    """Thread-safe. ``clock`` is monotonic, in seconds."""

    def __init__(self, store: Store, *, clock: Callable[[], float], patience_s: float = PATIENCE_S) -> None:
        self._store = store
        self._clock = clock
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._arrivals: dict[Seal, _Arrival] = {}

    def held(self, seal: Seal) -> Seal | None:
        """What is here already and is the same: nobody need send it again."""
        found = self._store.find(seal.namespace, seal.index, seal.step, seal.save)
        return found if found is not None and (found.digest, found.size) == (seal.digest, seal.size) else None

    def take_in(self, seal: Seal, start: int, end: int, fill: Callable[[memoryview], None]) -> Seal | None:
        """Has ``fill`` write these bytes of a replica; the seal once it is whole, None while other parts are missing.

        Raises:
            NoRoom: nothing was written.
            Corrupt: the whole did not have the digest of the seal; it is forgotten.
        """
        arrival = self._join(seal)
        is_filled = False
        try:
            with arrival.making:
                if arrival.segment is None:
                    arrival.segment = self._store.take(seal.namespace, seal.index, seal.step, seal.size)
            self._fill(arrival, arrival.segment.body, (start, end), fill)
            self._catch_up(arrival, arrival.segment.body, (start, end))
            is_filled = True
        finally:
            whole = self._leave(seal, arrival, is_filled=is_filled)
        return self._sealed(seal, whole, None if arrival.is_twofold else arrival.begun) if whole is not None else None

    def sweep(self, *, all_of_them: bool = False) -> None:
        """Gives back what nobody goes on with."""
        oldest = self._clock() - self._patience_s
        with self._lock:
            stale = [
                (seal, one) for seal, one in self._arrivals.items() if not one.writers and (all_of_them or one.touched_at < oldest)
            ]
            for seal, _ in stale:
                del self._arrivals[seal]
        for _, one in stale:
            self._give_back(one)

    def _join(self, seal: Seal) -> _Arrival:
        self.sweep()
        with self._lock:
            arrival = self._arrivals.setdefault(seal, _Arrival(self._clock()))
            arrival.writers += 1
            return arrival

    def _fill(self, arrival: _Arrival, body: memoryview, span: tuple[int, int], fill: Callable[[memoryview], None]) -> None:
        """Hashed as it comes, if everything before it has been."""
        start, end = span
        with self._lock:
            arrival.is_twofold |= any(start < stop and first < end for first, stop in arrival.asked)
            arrival.asked.append(span)
            is_next = start == arrival.begun.nbytes and not arrival.is_hashing
            arrival.is_hashing |= is_next
        if not is_next:
            fill(body[start:end])
            return
        try:
            for at in range(start, end, _PIECE):
                piece = body[at : min(at + _PIECE, end)]
                fill(piece)
                arrival.begun.add(piece)
        finally:
            arrival.is_hashing = False

    def _catch_up(self, arrival: _Arrival, body: memoryview, span: tuple[int, int]) -> None:
        """This part is there; hashes what came before its turn, unless somebody does: he looks again when he has done it."""
        with self._lock:
            arrival.spans.add(span)
        while True:
            with self._lock:
                done, stop = arrival.begun.nbytes, arrival.hashable()
                if arrival.is_hashing or not stop:
                    return
                arrival.is_hashing = True
            try:
                for at in range(done, stop, _PIECE):
                    arrival.begun.add(body[at : min(at + _PIECE, stop)])
            finally:
                arrival.is_hashing = False

    def _leave(self, seal: Seal, arrival: _Arrival, *, is_filled: bool) -> Segment | None:
        """The segment, for the last writer of a whole one to seal. While others write nobody may: they would write into what is sealed."""
        with self._lock:
            arrival.writers -= 1
            arrival.touched_at = self._clock()
            arrival.is_broken |= not is_filled
            is_whole = arrival.is_whole(seal.size)
            if arrival.writers or not (is_whole or arrival.is_broken):
                return None
            del self._arrivals[seal]
        if is_whole and is_filled:
            return arrival.segment
        self._give_back(arrival)
        return None

    def _sealed(self, seal: Seal, segment: Segment, begun: Digest | None) -> Seal:
        try:
            return self._store.seal(segment, replica_of(seal), begun=begun)
        except BaseException:
            self._store.abandon(segment)
            raise

    def _give_back(self, arrival: _Arrival) -> None:
        if arrival.segment is not None:
            self._store.abandon(arrival.segment)
