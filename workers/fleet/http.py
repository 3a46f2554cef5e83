"""As much of HTTP/1.1 as thousands of agents in one process need: a few connections that they share, and a stream each.

A client library keeps tens of kilobytes a connection and takes a millisecond of its process a request; this is a tenth of either.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_PATIENCE_S = 10.0
_LIMIT = 1 << 22
"""The longest line of a stream: an assignment of a large job."""
OK = 200


class Unreachable(Exception):
    """Nobody answers, or not in HTTP."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The object that the body is. Raises ValueError, in words: it is none."""
        try:
            told = json.loads(self.body)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            message = f"answered {self.status} with a body of {len(self.body)} bytes that is no JSON object"
            raise ValueError(message)  # noqa: TRY004  (what is wrong is the text)
        return told


@dataclass(eq=False)
class Wire:
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        self.writer.close()


@dataclass
class Http:
    """``url`` is where the API listens. ``most`` connections serve all calls that are answered at once."""

    url: str
    most: int = 32
    _idle: list[Wire] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self._host = parts.hostname or "127.0.0.1"
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self._path = parts.path.rstrip("/")
        self._room = asyncio.Semaphore(self.most)

    async def post(self, path: str, body: Any, token: str | None = None) -> Answer:
        """Raises Unreachable. A connection that the other side has closed meanwhile is tried once more, on a fresh one."""
        content = json.dumps(body).encode()
        async with self._room:
            kept = self._idle.pop() if self._idle else None
            if kept is not None:
                try:
                    return await self._ask(kept, path, content, token)
                except Unreachable:
                    pass
            return await self._ask(await self._connect(), path, content, token)

    @asynccontextmanager
    async def stream(self, path: str, token: str | None) -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
        """A GET whose answer goes on: its status and where ``lines`` reads it from. Raises Unreachable."""
        wire = await self._connect()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                wire.writer.write(self._head("GET", path, token))
                status, _ = await _headers(wire.reader)
            yield status, wire.reader
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            raise Unreachable(type(error).__name__) from error
        finally:
            wire.close()

    def close(self) -> None:
        for wire in self._idle:
            wire.close()
        self._idle.clear()

    async def _connect(self) -> Wire:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return Wire(*await asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=_LIMIT))
        except (OSError, TimeoutError) as error:
            message = f"{self._host}:{self._port}: {type(error).__name__}"
            raise Unreachable(message) from error

    async def _ask(self, wire: Wire, path: str, content: bytes, token: str | None) -> Answer:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                wire.writer.write(self._head("POST", path, token, len(content)) + content)
                status, headers = await _headers(wire.reader)
                answer = Answer(status, await _body(wire.reader, headers))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            wire.close()
            raise Unreachable(type(error).__name__) from error
        except asyncio.CancelledError:
            wire.close()  # half an answer may be on its way
            raise
        if headers.get("connection", "").lower() == "close":
            wire.close()
        else:
            self._idle.append(wire)
        return answer

    def _head(self, verb: str, path: str, token: str | None, length: int | None = None) -> bytes:
        lines = [f"{verb} {self._path}{path} HTTP/1.1", f"Host: {self._host}:{self._port}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        lines += ["Content-Type: application/json", f"Content-Length: {length}"] if length is not None else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a chunked body, until it ends. An empty one keeps the connection alive, or ends what is told first."""
    held = b""
    while size := await _chunk_size(reader):
        held += await reader.readexactly(size)
        await reader.readexactly(2)
        while b"\n" in held:
            line, _, held = held.partition(b"\n")
            yield line


async def _headers(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    return int(first[0].split()[1]), _named(first[1:])


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := await _chunk_size(reader):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    return int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    """The other side of it: a request's path, headers and body. Raises ValueError for what is no HTTP."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    words = head[0].split()
    if len(words) != 3:  # noqa: PLR2004  (verb, path, version)
        message = "no request line"
        raise ValueError(message)
    headers = _named(head[1:])
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= _LIMIT:
        message = f"a body of {length} bytes"
        raise ValueError(message)
    return words[1], headers, await reader.readexactly(length)


def _named(told: list[str]) -> dict[str, str]:
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in told if line)}
