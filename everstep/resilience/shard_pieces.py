"""Shards on the wire: which rows of one division lie in another, and a replica given away whole.

A replica on the wire: the length of a head, eight bytes, big-endian; the head, JSON ("sizes" and "lengths" of its tensors, the length of "rest" and the loss of the last step);
everything that is no tensor; the bytes of all tensors.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .memory import bytes_of
from .shard_replicas import Copy, Slot, Slots
from .sharding import Seat

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True)
class Part:
    """One shard, living or a replica. ``lengths``: how many rows the whole of each tensor has, None where it is not sharded."""

    rest: bytes
    tensors: Sequence[torch.Tensor]
    lengths: Sequence[int | None] = ()


@dataclass(frozen=True)
class Piece:
    """Bytes of tensor ``number``: so many from ``start``."""

    number: int
    start: int
    nbytes: int


def overlap(source: Seat, target: Seat, length: int) -> tuple[int, int]:
    """First row and end of what both seats have of a tensor of that many rows."""
    first, end = source.rows(length)
    other_first, other_end = target.rows(length)
    low, high = max(first, other_first), min(end, other_end)
    return (low, high) if low < high else (low, low)


def pieces_of(part: Part, source: Seat, target: Seat) -> list[Piece]:
    """What a shard gives to a seat of another division. What is not sharded comes from the first shard alone."""
    found = []
    for number, (tensor, length) in enumerate(zip(part.tensors, part.lengths, strict=True)):
        if length is None:
            if source.index == 0:
                found.append(Piece(number, 0, tensor.nbytes))
            continue
        first, end = source.rows(length)
        low, high = overlap(source, target, length)
        row = tensor.nbytes // (end - first) if end > first else 0
        if high > low:
            found.append(Piece(number, (low - first) * row, (high - low) * row))
    return found


def places_of(
    tensors: Sequence[torch.Tensor], lengths: Sequence[int | None], source: Seat, target: Seat
) -> tuple[list[tuple[torch.Tensor, int]], list[Piece]]:
    """Where the pieces of a source go: each a tensor of the target's seat and its first byte; and the pieces that are to be expected."""
    places, pieces = [], []
    for number, (tensor, length) in enumerate(zip(tensors, lengths, strict=True)):
        if length is None:
            if source.index == 0:
                places.append((tensor, 0))
                pieces.append(Piece(number, 0, tensor.nbytes))
            continue
        first, end = target.rows(length)
        low, high = overlap(source, target, length)
        if high > low:
            row = tensor.nbytes // (end - first)
            places.append((tensor, (low - first) * row))
            pieces.append(Piece(number, 0, (high - low) * row))
    return places, pieces


def send_copy(write: Callable[[memoryview], None], copy: Copy, slot: Slot) -> None:
    head = json.dumps({"sizes": slot.sizes, "lengths": slot.lengths, "rest": len(copy.rest), "loss": copy.loss}).encode()
    write(memoryview(_LENGTH.pack(len(head)) + head + copy.rest))
    write(bytes_of(slot.body))


def receive_copy(connection: socket.socket, slots: Slots, seat: Seat, step: int, generation: int) -> bool:
    """Fills and seals a slot. False when the generation is over. Raises OSError, and then the slot stays torn."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    head = json.loads(_read(connection, length))
    rest = _read(connection, int(head["rest"]))
    slot = slots.to_fill(seat, step)
    try:
        _read_into(connection, slot.open(head["sizes"], head["lengths"]))
    except BaseException:
        slots.leave(slot)
        raise
    return slots.seal(slot, step, rest, head["loss"], generation)


def _read(connection: socket.socket, size: int) -> bytes:
    found = bytearray(size)
    _read_into(connection, memoryview(found))
    return bytes(found)


def _read_into(connection: socket.socket, room: memoryview) -> None:
    while room.nbytes:
        received = connection.recv_into(room)
        if received == 0:
            raise ConnectionResetError
        room = room[received:]
