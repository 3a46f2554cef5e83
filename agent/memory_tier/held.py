"""The words of the store: what is asked of it and what it tells."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from agent.memory_tier.segments import Segment
from everstep.shards import STAMP_BYTES, Seal, ShardKind
from everstep.tiers import CopyStatus

log = logging.getLogger(__name__)


class Gone(Exception):
    """The shard is not held any more: retention, an overwriting save, or its corruption was faster. Look for it elsewhere."""


class Corrupt(Exception):
    """The bytes do not have the digest that was promised for them: they must be sent again."""


@dataclass(frozen=True)
class Sealing:
    """What a filled segment is to become. ``digest`` is what the bytes must have, where somebody knows; ``written_at`` is None for now."""

    namespace: str
    index: int
    step: int
    kind: ShardKind
    nbytes: int
    save: str = ""
    origin: str = ""
    is_durable: bool = False
    shard_meta: str | None = None
    digest: str | None = None
    written_at: float | None = None


def replica_of(seal: Seal) -> Sealing:
    """It says what its original says; only its stamp is its own."""
    return Sealing(
        namespace=seal.namespace,
        index=seal.index,
        step=seal.step,
        kind=seal.kind,
        nbytes=seal.size,
        save=seal.save,
        origin=seal.origin,
        is_durable=seal.is_durable,
        shard_meta=seal.shard_meta,
        digest=seal.digest,
        written_at=seal.written_at,
    )


@dataclass(frozen=True)
class Change:
    """A shard has come or gone. SEALED with ``why`` "adopted": it was here before this process was, and its bytes are good."""

    seal: Seal
    status: CopyStatus
    why: str


@dataclass(frozen=True)
class Usage:
    """In bytes, and in numbers. ``spare`` are the bytes of segments that hold nothing, which are part of ``used``."""

    allocated: int
    used: int
    shards: int
    spare: int
    refusals: int


@dataclass(eq=False)
class Held:
    """A shard of the store. ``verifying`` is held while its bytes are hashed, so that they are hashed once."""

    seal: Seal
    segment: Segment
    is_verified: bool
    verifying: Lock = field(default_factory=Lock)


class Reading:
    """A shard that stays what it is until the reading ends."""

    def __init__(self, held: Held, end: Callable[[], None]) -> None:
        self.seal = held.seal
        self._segment = held.segment
        self._end = end

    @property
    def view(self) -> memoryview:
        """All bytes of the shard, read-only."""
        return self._segment.body[: self.seal.size].toreadonly()

    def check(self) -> None:
        """Call it after the bytes have been used. Raises Gone if they may not have been those of the seal."""
        if self._segment.stamp != self.seal.stamp:
            message = f"segment {self._segment.id} does not hold shard {self.seal.index} of step {self.seal.step} any more"
            raise Gone(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def guarded(listener: Callable[[Change], None]) -> Callable[[Change], None]:
    """A listener's failure is its own: whoever sealed a shard would else take it for unsealed, and fill its segment with another."""

    def heard(change: Change) -> None:
        try:
            listener(change)
        except Exception:
            log.exception("a change of shard %d of step %d was not taken notice of", change.seal.index, change.seal.step)

    return heard


def stamp_fits(segment: Segment, seal: Seal) -> bool:
    """Whether bytes and seal are of the same write, and all bytes there are: to read what has been cut off would end this process."""
    try:
        return segment.is_whole() and segment.stamp == seal.stamp and seal.size + STAMP_BYTES <= segment.nbytes
    except OSError:
        return False


def sealed(asked: Sealing, digest: str, stamp: str, *, node: str, now: float) -> Seal:
    """The seal of what was asked to be sealed."""
    return Seal(
        namespace=asked.namespace,
        index=asked.index,
        step=asked.step,
        kind=asked.kind,
        size=asked.nbytes,
        digest=digest,
        stamp=stamp,
        written_at=now if asked.written_at is None else asked.written_at,
        save=asked.save,
        origin=asked.origin or node,
        is_durable=asked.is_durable,
        shard_meta=asked.shard_meta,
    )
