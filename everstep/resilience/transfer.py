"""State from peer to peer over raw TCP, straight from the holder's tensors into the receiver's.

Neither flattened nor broadcast: both were measured slower. With several holders each sends a part of the tensors. The holder serves
only while its state is *published*: from the agreement of a generation until everybody holds the state, a time in which it cannot
change. A holder that leaves for a newer generation withdraws it, and may then train on while a late receiver still reads: so the last byte
of an answer says that the state was still published after the byte before it, and without that byte nothing counts as received.
The receiver's waits are short slices which give way to a newer generation.

Wire: the receiver sends one JSON line {"token", "generation", "want": "rest" | "tensors", "part", "parts"}; the answer is eight bytes of
length, big-endian, so many bytes (for tensors: those of every ``parts``-th entry, beginning with entry ``part``), and the last byte. With
"shard" (how many, which, at which step) it asks for a shard of a sharded state; "rows" and "seat" for those of its rows that lie in
another seat. With "keep" it gives instead: a replica of a shard (``shard_pieces``), acknowledged by the last byte once it is sealed.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.errors import TransferFailed

from .connections import connect, family_of
from .fence import Fence
from .memory import bytes_of
from .rendezvous import Superseded
from .shard_agreement import Mark
from .shard_pieces import Part, Piece, pieces_of, receive_copy, send_copy
from .shard_replicas import Copy, Slot, Slots
from .sharding import Seat

_SLICE_S = 0.02
_PATIENCE_S = 60.0
_PUBLISH_PATIENCE_S = 10.0
_LONGEST_REQUEST = 4096
_MOST_SOURCES = 4
_LENGTH = struct.Struct(">Q")
_STILL_PUBLISHED = b"!"


@dataclass(frozen=True)
class Published:
    """What a holder gives away in one generation."""

    generation: int
    token: str
    rest: bytes
    tensors: list[torch.Tensor]
    parts: Mapping[Mark, Part] = field(default_factory=dict)
    """Shards and replicas of shards, where the state is sharded."""


class TransferServer:
    """Serves this process's state to peers. One listening socket for the life of the process."""

    def __init__(self, address: str, fence: Fence) -> None:
        self._fence = fence
        self.slots = Slots()
        self._published: Published | None = None
        self._entered: tuple[int, str] = (0, "")
        self._news = threading.Condition()
        self._listener = fence.exempt(socket.create_server((address, 0)))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="everstep-transfer", daemon=True).start()

    def enter(self, generation: int, token: str) -> None:
        """The generation of which replicas are kept from now on."""
        self._entered = (generation, token)
        self.slots.enter(generation)

    def publish(self, published: Published | None) -> None:
        with self._news:
            self._published = published
            self._news.notify_all()

    def _accept(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                self._fence.exempt(connection)
                threading.Thread(target=self._serve, args=(connection,), name="everstep-transfer-out", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError):
            connection.settimeout(_PATIENCE_S)
            request = json.loads(_request_line(connection))
            if request["want"] == "keep":
                self._keep(connection, request)
                return
            published = self._wanted(int(request["generation"]), str(request["token"]))
            if published is None:
                return
            part = published.parts[_mark(request["shard"])] if "shard" in request else Part(published.rest, published.tensors)
            if request["want"] == "rest":
                connection.sendall(_LENGTH.pack(len(part.rest)) + part.rest)
            elif request["want"] == "rows":
                self._send_pieces(connection, part, pieces_of(part, Seat(*_mark(request["shard"])[:2]), Seat(*request["seat"])))
            else:
                self._send_tensors(connection, part.tensors[int(request["part"]) :: int(request["parts"])])
            if self._published is published:
                connection.sendall(_STILL_PUBLISHED)

    @staticmethod
    def _send_tensors(connection: socket.socket, part: Sequence[torch.Tensor]) -> None:
        connection.sendall(_LENGTH.pack(sum(tensor.nbytes for tensor in part)))
        for tensor in part:
            whole = tensor.detach().cpu().contiguous()
            connection.sendall(bytes_of(whole))

    @staticmethod
    def _send_pieces(connection: socket.socket, part: Part, pieces: list[Piece]) -> None:
        connection.sendall(_LENGTH.pack(sum(piece.nbytes for piece in pieces)))
        for piece in pieces:
            whole = part.tensors[piece.number].detach().cpu().contiguous()
            connection.sendall(bytes_of(whole)[piece.start : piece.start + piece.nbytes])

    def _keep(self, connection: socket.socket, request: dict[str, Any]) -> None:
        generation, token = self._entered
        if int(request["generation"]) == generation and hmac.compare_digest(token, str(request["token"])):
            shards, index, step = _mark(request["shard"])
            if receive_copy(connection, self.slots, Seat(shards, index), step, generation):
                connection.sendall(_STILL_PUBLISHED)

    def _wanted(self, generation: int, token: str) -> Published | None:
        """A receiver may ask before this process has published; it is waited for a while."""

        def is_there() -> bool:
            return self._published is not None and self._published.generation >= generation

        with self._news:
            self._news.wait_for(is_there, _PUBLISH_PATIENCE_S)
            published = self._published
        if published is None or published.generation != generation or not hmac.compare_digest(published.token, token):
            return None
        return published


class Receiver:
    """Fetches a state in one generation from the addresses of its holders."""

    def __init__(
        self,
        holders: list[tuple[str, int]],
        generation: int,
        token: str,
        fence: Fence,
        is_superseded: Callable[[], bool],
        shard: Mark | None = None,
    ) -> None:
        self._shard = {} if shard is None else {"shard": list(shard)}
        self._holders = holders[:_MOST_SOURCES]
        self._generation = generation
        self._token = token
        self._fence = fence
        self._is_superseded = is_superseded

    def rest(self) -> bytes:
        with self._ask(self._holders[0], {"want": "rest"}) as connection:
            blob = torch.empty(_LENGTH.unpack(self._read(connection, _LENGTH.size))[0], dtype=torch.uint8)
            self._read_into(connection, bytes_of(blob))
            self._check_whole(connection)
        return bytes(bytes_of(blob))

    def tensors(self, targets: list[torch.Tensor]) -> int:
        """Fills the targets, and returns the number of bytes. Raises TransferFailed or Superseded."""
        parts = min(len(self._holders), max(1, len(targets)))
        errors: list[BaseException] = []

        def fetch(part: int) -> None:
            try:
                self._part(part, parts, targets[part::parts])
            except BaseException as error:  # noqa: BLE001, raised in the caller's thread
                errors.append(error)

        threads = [threading.Thread(target=fetch, args=(part,), name="everstep-transfer-in", daemon=True) for part in range(parts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(target.nbytes for target in targets)

    def rows(self, targets: list[tuple[torch.Tensor, int]], seat: Seat, expected: list[Piece]) -> int:
        """Fills rows of the targets (each with the first byte) from a shard of another division. Returns the number of bytes."""
        with self._ask(self._holders[0], {"want": "rows", "seat": [seat.shards, seat.index]}) as connection:
            announced: int = _LENGTH.unpack(self._read(connection, _LENGTH.size))[0]
            if announced != sum(piece.nbytes for piece in expected):
                message = f"{self._holders[0]} sends {announced} bytes, expected {sum(piece.nbytes for piece in expected)}"
                raise TransferFailed(message)
            for (target, start), piece in zip(targets, expected, strict=True):
                staged = torch.empty(piece.nbytes, dtype=torch.uint8)
                self._read_into(connection, bytes_of(staged))
                flat = target.detach().view(-1).view(torch.uint8)
                flat[start : start + piece.nbytes].copy_(staged)
            self._check_whole(connection)
        return announced

    def keep(self, copy: Copy, slot: Slot) -> None:
        """Gives a replica away; returns when it is sealed. Raises TransferFailed or Superseded."""
        with self._ask(self._holders[0], {"want": "keep"}) as connection:
            send_copy(lambda view: self._write(connection, view), copy, slot)
            self._check_whole(connection)

    def _write(self, connection: socket.socket, view: memoryview) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while view.nbytes:
            self._give_way(deadline)
            try:
                sent = connection.send(view)
            except TimeoutError:
                continue
            except OSError as error:
                raise TransferFailed(str(error)) from error
            view = view[sent:]
            deadline = time.monotonic() + _PATIENCE_S

    def _part(self, part: int, parts: int, targets: list[torch.Tensor]) -> None:
        with self._ask(self._holders[part], {"want": "tensors", "part": part, "parts": parts}) as connection:
            announced = _LENGTH.unpack(self._read(connection, _LENGTH.size))[0]
            expected = sum(target.nbytes for target in targets)
            if announced != expected:
                message = f"{self._holders[part]} sends {announced} bytes, expected {expected}"
                raise TransferFailed(message)
            for target in targets:
                self._fill(connection, target)
            self._check_whole(connection)

    def _check_whole(self, connection: socket.socket) -> None:
        """What was read is of one moment only if its holder has not moved on meanwhile."""
        self._read(connection, len(_STILL_PUBLISHED))

    def _fill(self, connection: socket.socket, target: torch.Tensor) -> None:
        plain = target.detach()
        if plain.device.type == "cpu" and plain.is_contiguous():
            self._read_into(connection, bytes_of(plain))
            return
        staged = torch.empty(plain.shape, dtype=plain.dtype)
        self._read_into(connection, bytes_of(staged))
        plain.copy_(staged)

    def _ask(self, holder: tuple[str, int], request: dict[str, Any]) -> socket.socket:
        deadline = time.monotonic() + _PATIENCE_S
        with contextlib.ExitStack() as opened:
            connection = self._fence.exempt(opened.enter_context(socket.socket(family_of(holder[0]), socket.SOCK_STREAM)))
            connection.settimeout(_SLICE_S)
            try:
                connect(connection, holder, lambda: self._give_way(deadline))
                connection.sendall(
                    json.dumps({"token": self._token, "generation": self._generation, **self._shard, **request}).encode() + b"\n"
                )
            except OSError as error:
                message = f"{holder[0]}:{holder[1]}: {error}"
                raise TransferFailed(message) from error
            opened.pop_all()
        return connection

    def _read(self, connection: socket.socket, size: int) -> bytes:
        found = bytearray(size)
        self._read_into(connection, memoryview(found))
        return bytes(found)

    def _read_into(self, connection: socket.socket, room: memoryview) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while room.nbytes:
            self._give_way(deadline)  # while bytes flow too: a big state takes seconds, and may be of no use any more
            try:
                received = connection.recv_into(room)
            except TimeoutError:
                continue
            except OSError as error:
                raise TransferFailed(str(error)) from error
            if received == 0:
                raise TransferFailed
            room = room[received:]
            deadline = time.monotonic() + _PATIENCE_S

    def _give_way(self, deadline: float) -> None:
        if self._is_superseded():
            raise Superseded
        if time.monotonic() > deadline:
            message = f"no byte within {_PATIENCE_S:.0f} s"
            raise TransferFailed(message)


def _mark(told: list[int]) -> Mark:
    shards, index, step = told
    return int(shards), int(index), int(step)


def _request_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_REQUEST:
        received = connection.recv(1)  # what follows the line is read by whoever the request is for
        if not received:
            break
        line += received
    return line
