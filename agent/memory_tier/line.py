"""One keep-alive connection to another node's door, on a raw socket: what is sent comes out of a mapping, what is received goes into one.

A body is never gathered in memory: measured, ``send`` of a memoryview is faster than ``sendfile`` out of tmpfs at half the CPU. Every wait has
an end, counted from the last byte that moved and not from the beginning, since a large shard takes long.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass

CONNECT_S = 2.0
STALL_S = 20.0
"""How long no byte may move before the other end counts as gone."""
LONGEST_HEAD = 64 << 10
_PIECE = 4 << 20
"""What is handed to one ``sendall``: its time-out is for all of it."""
_CHUNK = 64 << 10


class Broken(Exception):
    """The connection ended, stalled or spoke something that is not HTTP. ``is_stale``: before the first byte of an answer."""

    def __init__(self, why: str, *, is_stale: bool = False) -> None:
        super().__init__(why)
        self.is_stale = is_stale


@dataclass(frozen=True)
class Answer:
    """A status and its headers, names in lower case; ``nbytes`` of body follow."""

    status: int
    headers: Mapping[str, str]
    nbytes: int


class Line:
    """Not for several threads at once: a request and its answer belong together."""

    def __init__(self, address: str, port: int, *, connect_s: float = CONNECT_S, stall_s: float = STALL_S) -> None:
        """Raises Broken."""
        self.host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        self._unread = b""
        try:
            self._connection = socket.create_connection((address, port), connect_s)
        except OSError as error:
            raise Broken(_said(error)) from error
        self._connection.settimeout(stall_s)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method: str, target: str, headers: Mapping[str, str]) -> None:
        """Sends a request's head. Raises Broken."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}", *(f"{name}: {value}" for name, value in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            message = f"a header of {method} {target} has a line break in it"
            raise ValueError(message)
        self.send(memoryview("\r\n".join([*lines, "", ""]).encode("latin-1")), is_stale=True)

    def send(self, body: memoryview, *, is_stale: bool = False) -> None:
        """Raises Broken."""
        try:
            for start in range(0, body.nbytes, _PIECE):
                self._connection.sendall(body[start : start + _PIECE])
        except OSError as error:
            raise Broken(_said(error), is_stale=is_stale) from error

    def hear(self) -> Answer:
        """The next answer's head, interim ones (100) too. Raises Broken."""
        is_first = not self._unread
        while (end := self._unread.find(b"\r\n\r\n")) < 0:
            if len(self._unread) > LONGEST_HEAD:
                message = "the answer's head has no end"
                raise Broken(message)
            self._unread += self._receive(is_stale=is_first and not self._unread)
        head, self._unread = self._unread[:end], self._unread[end + 4 :]
        return _answer(head)

    def read_into(self, room: memoryview) -> None:
        """Fills ``room`` with the next bytes of a body. Raises Broken."""
        given = min(len(self._unread), room.nbytes)
        room[:given] = self._unread[:given]
        self._unread = self._unread[given:]
        while given < room.nbytes:
            try:
                received = self._connection.recv_into(room[given:])
            except OSError as error:
                raise Broken(_said(error)) from error
            if not received:
                message = f"the answer ended {room.nbytes - given} bytes early"
                raise Broken(message)
            given += received

    def read(self, nbytes: int) -> bytes:
        """Raises Broken."""
        found = bytearray(nbytes)
        self.read_into(memoryview(found))
        return bytes(found)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()

    def _receive(self, *, is_stale: bool) -> bytes:
        try:
            received = self._connection.recv(_CHUNK)
        except TimeoutError as error:
            raise Broken(_said(error)) from error  # it is there and does not answer: asking again would only wait again
        except OSError as error:
            raise Broken(_said(error), is_stale=is_stale) from error
        if not received:
            message = "the connection was closed before the answer"
            raise Broken(message, is_stale=is_stale)
        return received


def _answer(head: bytes) -> Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit() or not length.isdigit() or "transfer-encoding" in headers:
        message = f"that is no answer of a memory tier: {first[:80]!r}"
        raise Broken(message)
    return Answer(int(rest[:3]), headers, int(length))


def _said(error: OSError) -> str:
    return "no byte moved for too long" if isinstance(error, TimeoutError) else (error.strerror or str(error))
