"""What lies where in a data shard of ours, told by the shard itself.

A shard is ``the items' bytes | the layout, as JSON | a footer``. The footer is ``MAGIC`` and the length of the JSON, little-endian; so a reader
that has the last bytes of a shard finds everything else in it. Items begin at multiples of ``ALIGN``: a mapped shard is a mapped tensor.

Standard library only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from everstep.errors import CheckpointUnreadable

MAGIC = b"EVSHARD1"
ALIGN = 64
_FOOTER = struct.Struct("<8sQ")
FOOTER_BYTES = _FOOTER.size
_SMALL = 1 << 20
_DIGEST_LENGTH = 32

Key = tuple[str, tuple[int, ...] | None]
"""An item's name, and where its chunk begins in the whole tensor; None for bytes that are no tensor."""


@dataclass(frozen=True)
class Item:
    """``start`` and ``nbytes`` are of the shard's bytes. ``offsets`` as in ``Key``. ``digest``: ``shards.DIGEST`` of the item alone, "" for a large one."""

    name: str
    offsets: tuple[int, ...] | None
    start: int
    nbytes: int
    digest: str = ""

    @property
    def key(self) -> Key:
        return (self.name, self.offsets)


@dataclass(frozen=True)
class Layout:
    items: tuple[Item, ...]

    @classmethod
    def of(cls, sizes: Iterable[tuple[str, tuple[int, ...] | None, int]], *, has_digests: bool = False) -> Layout:
        """Lays items of these names, offsets and sizes in bytes one behind the other.

        ``has_digests`` keeps room for those of small items; ``digested_tail`` fills it.
        """
        items: list[Item] = []
        start = 0
        for name, offsets, nbytes in sizes:
            items.append(Item(name, offsets, start, nbytes, room_for_digest(nbytes) if has_digests else ""))
            start = aligned(start + nbytes)
        return cls(tuple(items))

    @cached_property
    def nbytes(self) -> int:
        """Where the items end and the tail begins."""
        return max((aligned(item.start + item.nbytes) for item in self.items), default=0)

    def extended(self, sizes: Iterable[tuple[str, tuple[int, ...] | None, int]]) -> Layout:
        """With more items behind. What is known of these is not worked out again: blobs differ in size at every save, thousands of tensors do not."""
        more = Layout.of(sizes)
        behind = Layout(tuple(Item(one.name, one.offsets, self.nbytes + one.start, one.nbytes) for one in more.items))
        made = Layout(self.items + behind.items)
        gaps = tuple((self.nbytes + start, self.nbytes + end) for start, end in more.gaps())
        vars(made).update(nbytes=self.nbytes + more.nbytes, _told=self._told + behind._told, _gaps=self._gaps + gaps)
        return made

    @cached_property
    def tail(self) -> bytes:
        text = b"[" + b",".join(self._told) + b"]"
        return text + _FOOTER.pack(MAGIC, len(text))

    @cached_property
    def _told(self) -> list[bytes]:
        """Each item in JSON; its digest, if it has one, is the last that it says."""
        told = ([one.name, one.offsets, one.start, one.nbytes, *([one.digest] if one.digest else [])] for one in self.items)
        return [json.dumps(item, separators=(",", ":")).encode() for item in told]

    @property
    def size(self) -> int:
        """Of the whole shard."""
        return self.nbytes + len(self.tail)

    def digested_tail(self, digest_of: Callable[[int, int], str]) -> bytes:
        """The tail with the digests of what lies there, where there is room for one. ``digest_of``: of the bytes from start to end.

        Thousands of items are written into a tail that is known already: making it anew at each save would cost many times the digests.
        """
        tail = bytearray(self.tail)
        for start, end, place in self._digests:
            tail[place : place + _DIGEST_LENGTH] = digest_of(start, end).encode()
        return bytes(tail)

    @cached_property
    def _digests(self) -> tuple[tuple[int, int, int], ...]:
        """Start and end of each item that has a digest, and where that stands in the tail."""
        found: list[tuple[int, int, int]] = []
        end = 0
        for item, told in zip(self.items, self._told, strict=True):
            end += 1 + len(told)  # the bracket or comma before it
            if item.digest:
                found.append((item.start, item.start + item.nbytes, end - len('"]') - _DIGEST_LENGTH))
        return tuple(found)

    @cached_property
    def by_key(self) -> Mapping[Key, Item]:
        return {item.key: item for item in self.items}

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The bytes that are no item's, as (start, end): a segment is used again, and what its last user left there must not be taken over."""
        return self._gaps

    @cached_property
    def _gaps(self) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        at = 0
        for item in sorted(self.items, key=lambda one: one.start):
            if item.start > at:
                found.append((at, item.start))
            at = max(at, item.start + item.nbytes)
        return (*found, (at, self.nbytes)) if self.nbytes > at else tuple(found)


def room_for_digest(nbytes: int) -> str:
    """Of a small item: whoever wants a little of a shard can verify it without reading all of it. Large ones would cost the save a second hash."""
    return "0" * _DIGEST_LENGTH if nbytes <= _SMALL else ""


def aligned(position: int) -> int:
    return -(-position // ALIGN) * ALIGN


def tail_length(footer: bytes) -> int:
    """How many bytes at a shard's end are its layout and footer. ``footer``: its last ``FOOTER_BYTES``. Raises CheckpointUnreadable."""
    magic, length = _FOOTER.unpack(footer) if len(footer) == FOOTER_BYTES else (b"", 0)
    if magic != MAGIC:
        message = "the shard does not end with a layout of Everstep's: it was written by another program, or is cut short"
        raise CheckpointUnreadable(message)
    return int(length) + FOOTER_BYTES


def read_tail(tail: bytes, size: int) -> Layout:
    """The layout of a shard of ``size`` bytes from its last ``tail_length`` bytes. Raises CheckpointUnreadable."""
    if tail_length(tail[-FOOTER_BYTES:]) != len(tail):
        message = "the layout of the shard is cut short"
        raise CheckpointUnreadable(message)
    try:
        told = json.loads(tail[:-FOOTER_BYTES])
        items = tuple(
            Item(name, None if offsets is None else tuple(offsets), start, nbytes, *digest)
            for name, offsets, start, nbytes, *digest in told
        )
    except (ValueError, TypeError) as error:
        message = f"the layout of the shard cannot be read: {error}"
        raise CheckpointUnreadable(message) from error
    if any(item.start < 0 or item.nbytes < 0 or item.start + item.nbytes > size - len(tail) for item in items):
        message = "the layout of the shard names bytes that it does not have"
        raise CheckpointUnreadable(message)
    return Layout(items)
