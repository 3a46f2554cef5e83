"""The vote: every rank tells every other some numbers, on connections of our own.

Gloo's all-reduce goes around a ring: 2 (n - 1) messages one after the other, each of which wakes threads. A vote is a few bytes for which
everybody waits in each step, so it goes the short way (Bruck's all-gather): in round r a rank gives what it knows to the rank 2^r before it, and
takes what the rank 2^r behind it knows; after ⌈log2 n⌉ rounds it has heard everybody. Whoever has counted knows that all have cast.

The connections are of one generation. They are made inside the fence, which cuts them together with those of its groups.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.errors import CollectiveFailed
from everstep.protocol import Generation

from .connections import connect, family_of
from .construction import CONSTRUCTION_TIMEOUT
from .escapes import Alone, Departure, Escape, failure
from .groups import SLICE, waiting_for

_SLICE_MS = SLICE.total_seconds() * 1000
_BYTES = struct.calcsize("<d")
_GREETING = hashlib.sha256().digest_size


@dataclass
class _Round:
    """``taker`` is given ``blocks`` ranks' numbers, and as many come from ``giver``."""

    taker: socket.socket
    giver: socket.socket
    blocks: int
    unsent: bytes = b""


class Votes:
    """One per process, for its training thread. Alone until it meets others."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._listener: socket.socket | None = None
        self._rounds: tuple[_Round, ...] = ()
        self._escape: Escape = Alone()
        self._rank, self._size = 0, 1
        self._width = 0
        self._known = b""

    def open(self) -> int:
        """Leaves the generation before, and listens for partners in the next one. Returns the port."""
        self.close()
        self._listener = socket.create_server((self._address, 0), family=family_of(self._address), backlog=64)
        port: int = self._listener.getsockname()[1]
        return port

    def meet(self, generation: Generation, rank: int, ports: Sequence[int], escape: Escape) -> None:
        """Connects with the partners of each round. ``ports`` are those at which the ranks listen.

        Raises:
            Unwind: a newer generation exists.
            CollectiveFailed: a partner cannot be reached, or does not come.
        """
        self._rank, self._size, self._escape = rank, generation.world_size, escape
        strides = [1 << number for number in range((self._size - 1).bit_length())]
        takers = [(rank - stride) % self._size for stride in strides]
        awaited = {_greeting(generation, (rank + stride) % self._size, rank): stride for stride in strides}
        with contextlib.ExitStack() as opened:
            called = [
                self._call((generation.members[to].address, ports[to]), _greeting(generation, rank, to), opened) for to in takers
            ]
            givers = self._admit(awaited, opened)
            opened.pop_all()
        self._rounds = tuple(
            _Round(taker, givers[stride], min(stride, self._size - stride)) for taker, stride in zip(called, strides, strict=True)
        )

    def close(self) -> None:
        """Alone from now on."""
        for one in self._rounds:
            one.taker.close()
            one.giver.close()
        if self._listener is not None:
            self._listener.close()
        self._listener, self._rounds = None, ()
        self._rank, self._size, self._escape = 0, 1, Alone()

    def cast(self, told: Sequence[float]) -> None:
        """Tells the first partner. Everybody casts equally many numbers. Raises CollectiveFailed: a partner is gone."""
        self._width = len(told)
        self._known = struct.pack(f"<{self._width}d", *told)
        if self._rounds:
            self._begin(self._rounds[0])

    def count(self) -> list[float]:
        """What everybody has told, summed in the order of the ranks, so that the sums have the same bits everywhere.

        Raises:
            Unwind: a newer generation exists, and a partner is waited for in vain.
            CollectiveFailed: a partner is gone.
        """
        with waiting_for("the vote"):
            for number, one in enumerate(self._rounds):
                if number:
                    self._begin(one)
                self._known += self._finish(one)
        first = (self._size - self._rank) * self._width * _BYTES  # what is known begins with this rank
        numbers = struct.unpack(f"<{self._width * self._size}d", self._known[first:] + self._known[:first])
        return [_total(numbers[place :: self._width]) for place in range(self._width)]

    # ------------------------------------------------------------ a round

    def _begin(self, one: _Round) -> None:
        one.unsent = self._known[: one.blocks * self._width * _BYTES]
        self._send(one)

    def _finish(self, one: _Round) -> bytes:
        """Sends what is left and takes what comes, both at once: everybody is as far."""
        departure = Departure(self._escape)
        taken, wanted = b"", one.blocks * self._width * _BYTES
        while len(taken) < wanted or one.unsent:
            waits = select.poll()
            if len(taken) < wanted:
                waits.register(one.giver, select.POLLIN)
            if one.unsent:
                waits.register(one.taker, select.POLLOUT)
            ready = dict(waits.poll(_SLICE_MS))
            if one.giver.fileno() in ready:
                taken += self._receive(one.giver, wanted - len(taken))
            if one.taker.fileno() in ready:
                self._send(one)
            if not ready:
                departure.look()
        return taken

    def _send(self, one: _Round) -> None:
        try:
            one.unsent = one.unsent[one.taker.send(one.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._failure(str(error)) from error

    def _receive(self, giver: socket.socket, most: int) -> bytes:
        try:
            received = giver.recv(most)
        except OSError as error:
            raise self._failure(str(error)) from error
        if not received:
            message = "a peer has closed its connection"
            raise self._failure(message)
        return received

    def _failure(self, words: str) -> CollectiveFailed:
        return failure(self._escape, f"vote: {words}")

    # ------------------------------------------------------------ meeting

    def _call(self, address: tuple[str, int], greeting: bytes, opened: contextlib.ExitStack) -> socket.socket:
        """The partner has told its port, so it listens; whether it has come to admitting does not matter."""
        connection = opened.enter_context(socket.socket(family_of(address[0]), socket.SOCK_STREAM))
        _prepare(connection)
        try:
            connect(connection, address, Departure(self._escape, CONSTRUCTION_TIMEOUT).look)
            connection.sendall(greeting)
        except OSError as error:
            message = f"{address[0]}:{address[1]}: {error}"
            raise self._failure(message) from error
        return connection

    def _admit(self, awaited: Mapping[bytes, int], opened: contextlib.ExitStack) -> dict[int, socket.socket]:
        """By what they greet with. Whoever greets otherwise, or does not, is a stranger."""
        departure = Departure(self._escape, CONSTRUCTION_TIMEOUT)
        found: dict[int, socket.socket] = {}
        heard: dict[int, tuple[socket.socket, bytes]] = {}
        listener = self._listening()
        while len(found) < len(awaited):
            departure.look()
            waits = select.poll()
            for one in (listener, *(connection for connection, _ in heard.values())):
                waits.register(one, select.POLLIN)
            for number, _ in waits.poll(_SLICE_MS):
                if number == listener.fileno():
                    connection = opened.enter_context(listener.accept()[0])
                    _prepare(connection)
                    heard[connection.fileno()] = connection, b""
                    continue
                connection, before = heard.pop(number)
                greeting = before + _read(connection, _GREETING - len(before))
                stride = awaited.get(greeting)
                if stride is not None:
                    found[stride] = connection
                elif before < greeting and len(greeting) < _GREETING:
                    heard[number] = connection, greeting
                else:
                    connection.close()
        for stranger, _ in heard.values():
            stranger.close()
        return found

    def _listening(self) -> socket.socket:
        if self._listener is None:
            message = "a process meets others where it listens for them"
            raise RuntimeError(message)
        return self._listener


def _greeting(generation: Generation, rank: int, to: int) -> bytes:
    """What nobody knows who is not told of this generation."""
    return hashlib.sha256(f"{generation.token} {generation.job} {generation.number} {rank} {to}".encode()).digest()


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _read(connection: socket.socket, most: int) -> bytes:
    with contextlib.suppress(OSError):
        return connection.recv(most)
    return b""


def _total(numbers: Sequence[float]) -> float:
    """Infinities of both signs, and what is beyond all floats, sum to nothing that is a number."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return math.nan
