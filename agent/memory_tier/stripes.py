"""How a large replica is cut for several streams at once: in stripes, of which each stream has every ``streams``-th.

The streams of one push say with ``Everstep-Stripes`` which of them they are. So the receiver reads them by turns, in the order of the shard's bytes, and can
hash a stripe while it is in a processor's cache.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = "Everstep-Stripes"
MOST_STREAMS = 16
LEAST_BYTES, MOST_BYTES = 64 << 10, 64 << 20
_TOLD = re.compile(r"push=([0-9a-f]{1,32}), stream=([0-9]{1,2})/([0-9]{1,2}), bytes=([0-9]{1,8})")


@dataclass(frozen=True)
class Attempt:
    """What all streams of one push have in common: two pushes of the same shard at once are never mixed."""

    id: str
    streams: int
    stripe: int
    """Bytes; only the last of a shard may be shorter."""


@dataclass(frozen=True)
class Stream:
    """One of a push, counted from 0."""

    attempt: Attempt
    number: int

    @classmethod
    def told(cls, text: str) -> Stream:
        """Raises ValueError: the words are for whoever sent it."""
        found = _TOLD.fullmatch(text)
        if found is None:
            message = f"{HEADER} must be push=HEX, stream=NUMBER/STREAMS, bytes=NUMBER, not {text[:80]!r}"
            raise ValueError(message)
        number, streams, stripe = (int(one) for one in found.groups()[1:])
        if not (number < streams <= MOST_STREAMS and LEAST_BYTES <= stripe <= MOST_BYTES):
            message = f"{HEADER}: up to {MOST_STREAMS} streams, counted from 0, and stripes of {LEAST_BYTES} to {MOST_BYTES} bytes, not {text!r}"
            raise ValueError(message)
        return cls(Attempt(found[1], streams, stripe), number)

    def __str__(self) -> str:
        return f"push={self.attempt.id}, stream={self.number}/{self.attempt.streams}, bytes={self.attempt.stripe}"

    def spans(self, size: int) -> Iterator[tuple[int, int]]:
        """The half-open spans of this stream's stripes in a shard of so many bytes, in order. An empty shard is one empty stripe of stream 0."""
        stripe = self.attempt.stripe
        for start in range(self.number * stripe, max(size, 1), self.attempt.streams * stripe):
            yield start, min(start + stripe, size)

    def nbytes(self, size: int) -> int:
        """How much of a shard of so many bytes this stream carries."""
        return sum(end - start for start, end in self.spans(size))


def alone() -> Stream:
    """Of a body that travels whole: an attempt of its own."""
    return attempted(1, MOST_BYTES)[0]


def attempted(streams: int, stripe: int) -> list[Stream]:
    """The streams of a new attempt."""
    attempt = Attempt(secrets.token_hex(8), streams, stripe)
    return [Stream(attempt, number) for number in range(streams)]
