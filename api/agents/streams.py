"""Directive streams: a chunked NDJSON answer per node, which ends when either side does.

A stream's end is evidence: the kernel closes an agent's sockets when it is killed, so the end must be noticed at once, and must not be
reported when it is we who end it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.operations.agents import Line
from api.streaming import converse, part
from models.errors import NotFound
from models.ids import NodeId

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 2.0
_RETRY_S = 0.5


@dataclass(frozen=True)
class Ledger:
    """What a stream asks of the database; every call may raise SQLAlchemyError while the database is away.

    ``directives`` are those of ``assignments`` that say what the node should run, and are had sooner.
    """

    directives: Callable[[NodeId], Awaitable[list[Line]]]
    assignments: Callable[[NodeId], Awaitable[list[Line]]]
    deliver: Callable[[Sequence[int]], Awaitable[None]]
    close: Callable[[NodeId, str], Awaitable[None]]


@dataclass(eq=False)
class Stream:
    """One open stream. ``news`` is set when the node may have a new directive, ``over`` when we end it."""

    node_id: NodeId
    name: str
    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> bool:
        """Whether there is news, or an end, within the time."""
        try:
            async with asyncio.timeout(seconds):
                await self.news.wait()
        except TimeoutError:
            return False
        self.news.clear()
        return True

    def end(self) -> None:
        self.over.set()
        self.news.set()


class Streams:
    """The open streams of this process, one a node: a newer one replaces the older."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[NodeId, Stream] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.is_shutting_down = False

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        return tuple(self._open)

    def open(self, node_id: NodeId, name: str) -> StreamResponse:
        older = self._open.get(node_id)
        if older is not None:
            older.end()
        stream = self._open[node_id] = Stream(node_id, name)
        if self.is_shutting_down:
            stream.end()
        return StreamResponse(stream, self._ledger, self._ended)

    def wake(self, node_ids: Iterable[str] | None = None) -> None:
        """These nodes, or all, may have new directives."""
        for node_id in self.node_ids if node_ids is None else node_ids:
            stream = self._open.get(NodeId(node_id))
            if stream is not None:
                stream.news.set()

    def shut_down(self) -> None:
        """Ends every stream without reporting a node as cut off. Callable from a signal handler's turn of the loop."""
        self.is_shutting_down = True
        for stream in tuple(self._open.values()):
            stream.end()

    async def settled(self) -> None:
        """The ends that are still to be written; cancelled by a shutdown, when nobody can be told any more."""
        for task in tuple(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _ended(self, stream: Stream) -> None:
        if self._open.get(stream.node_id) is stream:
            del self._open[stream.node_id]
        if stream.over.is_set():
            return  # replaced, or shut down: the node is not cut off
        task = asyncio.create_task(self._close(stream))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, stream: Stream) -> None:
        """Writes the end, as often as it takes: a node that died while the database was away must not look connected for ever."""
        while True:
            try:
                return await self._ledger.close(stream.node_id, stream.name)
            except NotFound:
                return None  # the node's row went with it
            except SQLAlchemyError as error:
                log.warning("the end of node %s's stream is still to be written: %s", stream.node_id, type(error).__name__)
                await asyncio.sleep(_RETRY_S)


class StreamResponse(Response):
    """Sends a stream's lines, and listens for its end at the same time: an idle stream would never notice it by writing."""

    media_type = "application/x-ndjson"

    def __init__(self, stream: Stream, ledger: Ledger, ended: Callable[[Stream], None]) -> None:
        super().__init__()
        self._stream = stream
        self._ledger = ledger
        self._ended = ended
        self._sent: frozenset[int] | None = None
        self._jobs: frozenset[str] = frozenset()
        self._unnoted: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's three)
        await converse(receive, self._talk(send), lambda: self._ended(self._stream))

    async def _talk(self, send: Send) -> None:
        headers = [(b"content-type", self.media_type.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._tell(send)
        while not self._stream.over.is_set():
            if await self._stream.wait(KEEP_ALIVE_S):
                await self._tell(send)
            else:
                await send(part(b"\n"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send) -> None:
        """Writes what has not been written to this stream. The first time, an empty line says that this was all."""
        try:
            if self._sent is not None:
                await self._tell_changes(send, self._sent)
            lines = await self._ledger.assignments(self._stream.node_id)
            fresh = [line for line in lines if line.id not in (self._sent or ())]
            text = b"".join(json.dumps(line.wire).encode() + b"\n" for line in fresh)
            if self._sent is None:
                text += b"\n"
            if text:
                await send(part(text))
            self._sent = frozenset(line.id for line in lines)
            self._jobs = _jobs(lines)
            self._unnoted |= {line.id for line in fresh}
            if self._unnoted:
                await self._ledger.deliver(sorted(self._unnoted))
                self._unnoted.clear()
        except SQLAlchemyError as error:
            log.warning("directives of node %s cannot be read, trying again: %s", self._stream.node_id, type(error).__name__)
            await asyncio.sleep(_RETRY_S)
            self._stream.news.set()

    async def _tell_changes(self, send: Send, sent: frozenset[int]) -> None:
        """What is new of jobs that the node runs already, a change of membership above all, goes before everything else is looked for.

        A job that is new here waits: its processes need what is told before it.
        """
        lines = [line for line in await self._ledger.directives(self._stream.node_id) if line.id not in sent]
        changes = [line for line in lines if _jobs([line]) <= self._jobs]
        if changes:
            await send(part(b"".join(json.dumps(line.wire).encode() + b"\n" for line in changes)))
            self._sent = sent | {line.id for line in changes}
            self._unnoted |= {line.id for line in changes}


def _jobs(lines: Iterable[Line]) -> frozenset[str]:
    return frozenset(line.wire["assignment"]["job"] for line in lines if "assignment" in line.wire)
