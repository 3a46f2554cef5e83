"""Ranges of shards from the doors of other nodes' memory tiers, received straight into their place.

HTTP/1.1 on a plain socket: a body goes from the kernel into the caller's memory without a second copy. Connections are kept and used again.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from everstep.shards import Holder

_LONGEST_HEAD = 64 << 10
_OK = 200
_PARTIAL = 206
_MISSING = (403, 404, 410)


@dataclass(frozen=True)
class Told:
    """What a door says of a shard without sending it. ``digest`` is "" if it does not say."""

    size: int
    digest: str
    save: str


class Doors:
    """Raises OSError when a door cannot be reached, refuses, or closes in the middle; FileNotFoundError when it has no such shard.

    ``patience_s``: how long a door may send nothing.
    """

    def __init__(self, namespace: str, token: str, *, patience_s: float = 20.0) -> None:
        self._namespace = namespace
        self._token = token
        self._patience_s = patience_s
        self._idle: dict[tuple[str, int], list[socket.socket]] = {}
        self._lock = threading.Lock()

    def ask(self, holder: Holder, index: int, step: int) -> Told:
        with self._connected(holder) as connection:
            connection.sendall(self._request("HEAD", holder, index, step))
            _, headers, _ = _head(connection, (_OK,))
        return Told(int(headers.get("content-length", 0)), headers.get("everstep-digest", ""), headers.get("everstep-save", ""))

    def fetch(self, holder: Holder, index: int, step: int, start: int, into: Sequence[memoryview]) -> None:
        """Fills the buffers, one behind the other, with the shard's bytes from ``start`` on."""
        wanted = sum(len(buffer) for buffer in into)
        if not wanted:
            return
        with self._connected(holder) as connection:
            connection.sendall(self._request("GET", holder, index, step, f"Range: bytes={start}-{start + wanted - 1}\r\n"))
            _, headers, early = _head(connection, (_PARTIAL, _OK))  # a door may call all of it no part
            if int(headers.get("content-length", -1)) != wanted:
                message = f"the door of {holder.node} sends {headers.get('content-length')} bytes where {wanted} were asked for"
                raise OSError(message)
            for buffer in into:
                early = _fill(connection, buffer, early, holder)

    def close(self) -> None:
        with self._lock:
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _request(self, method: str, holder: Holder, index: int, step: int, more: str = "") -> bytes:
        bearer = f"Authorization: Bearer {self._token}\r\n" if self._token else ""
        path = f"/v1/cp/checkpoints/{self._namespace}/{index}/{step}?scope=local"
        return f"{method} {path} HTTP/1.1\r\nHost: {holder.address}:{holder.port}\r\n{bearer}{more}\r\n".encode()

    @contextmanager
    def _connected(self, holder: Holder) -> Iterator[socket.socket]:
        """A connection of the caller's own. It is kept only if the whole answer has been read: else the next one would read the rest of it."""
        place = (holder.address, holder.port)
        with self._lock:
            waiting = self._idle.get(place)
            connection = waiting.pop() if waiting else None
        if connection is not None and _has_ended(connection):
            connection.close()
            connection = None
        if connection is None:
            connection = socket.create_connection(place, timeout=self._patience_s)
        connection.settimeout(self._patience_s)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.setdefault(place, []).append(connection)


def _has_ended(connection: socket.socket) -> bool:
    """An idle connection with something to read has ended, or would answer what nobody asked."""
    poll = select.poll()  # ``select`` knows no descriptors above 1023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _head(connection: socket.socket, expected: Sequence[int]) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers in lower case, and what has already come of the body."""
    head = b""
    while (end := head.find(b"\r\n\r\n")) < 0:
        chunk = connection.recv(4096)
        if not chunk or len(head) > _LONGEST_HEAD:
            message = "the door closed the connection instead of answering"
            raise ConnectionResetError(message)
        head += chunk
    first, *lines = head[:end].decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1])
    if status in _MISSING:
        message = f"the door answers {first.partition(' ')[2]}"
        raise FileNotFoundError(message)
    if status not in expected:
        message = f"the door answers {first.partition(' ')[2]}"
        raise OSError(message)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return status, headers, head[end + 4 :]


def _fill(connection: socket.socket, buffer: memoryview, early: bytes, holder: Holder) -> bytes:
    """Fills one buffer; returns what is left of ``early``."""
    taken = min(len(early), len(buffer))
    buffer[:taken] = early[:taken]
    rest = buffer[taken:]
    while len(rest):
        got = connection.recv_into(rest)
        if not got:
            message = f"the door of {holder.node} closed the connection in the middle of a shard"
            raise ConnectionResetError(message)
        rest = rest[got:]
    return early[taken:]
