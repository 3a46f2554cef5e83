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

        ``has_digests`` keeps room for those of small items; ``digested`` must then fill it before the tail is written.
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

    @cached_property
    def tail(self) -> bytes:
        told = [[item.name, item.offsets, item.start, item.nbytes, *([item.digest] if item.digest else [])] for item in self.items]
        text = json.dumps(told, separators=(",", ":"))
        return text.encode() + _FOOTER.pack(MAGIC, len(text.encode()))

    @property
    def size(self) -> int:
        """Of the whole shard."""
        return self.nbytes + len(self.tail)

    def digested(self, digest_of: Callable[[int, int], str]) -> Layout:
        """The same with the digests of what lies there, where there is room for one. ``digest_of``: of the bytes from start to end."""
        return Layout(
            tuple(
                Item(one.name, one.offsets, one.start, one.nbytes, digest_of(one.start, one.start + one.nbytes))
                if one.digest
                else one
                for one in self.items
            )
        )

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
