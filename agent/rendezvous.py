"""The meeting point of a generation: a small key-value server, hosted by the agent of the generation's first member.

Keys live in one *space* per (job, generation). A space opens when the agent is told of the generation, and is dropped, its waiters
woken, as soon as a newer one exists: nobody can wait for a peer that has already moved on.

Wire: newline-delimited JSON; requests of a connection are answered in their order. Values are strings (clients encode bytes as base64).

    {"op": "open", "job": …, "generation": …, "token": …}      once, first
    {"op": "set", "key": …, "value": …}                        {"op": "get", "key": …}           waits for the key
    {"op": "add", "key": …, "amount": …}                       {"op": "wait", "keys": […]}       waits for all
    {"op": "check", "keys": […]}   {"op": "delete", "key": …}         {"op": "get-all", "keys": […]}     waits for all, and tells their values
    {"op": "gather", "name": …, "rank": …, "count": …, "value": {…}}      lays a value, waits for so many, and is told all in order of rank
    {"op": "meet", "name": …, "rank": …, "count": …}                      the same for members who have nothing to tell

Answers: {"value": …} or {"error": "refused" | "superseded" | "unknown-operation", "message": …}; to ``gather`` {"bytes": n}, and after that line
n bytes, as ``everstep.gathered`` packs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from everstep.gathered import pack
from everstep.protocol import Generation

_LONGEST_LINE = 1 << 20
_MOST_KEYS = 100_000
_MOST_GATHERINGS = 100
_BACKLOG = 4096
"""All members of a generation come at once."""
OPEN_PATIENCE_S = 10.0
_LINGER_S = 1.0
_CHUNK = 1 << 16


class _Refused(Exception):
    code = "refused"


class _Superseded(Exception):
    code = "superseded"


class _UnknownOperation(Exception):
    code = "unknown-operation"


class _Gathering:
    """What the members lay under one name. Whoever waits is woken once, when all are there, and all are told the same bytes."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._laid: dict[int, dict[str, Any]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._told: bytes | None = None

    def lay(self, rank: int, value: dict[str, Any]) -> None:
        self._laid[rank] = value
        self._told = None
        if self.is_whole:
            self.wake()

    @property
    def is_whole(self) -> bool:
        return len(self._laid) == self.count

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        _wake(waiting)

    def waiting(self) -> list[asyncio.Future[None]]:
        return self._waiting

    def told(self) -> _Line:
        """A whole answer. Raises ValueError when what was laid is not alike."""
        if self._told is None:
            packed = pack([self._laid[rank] for rank in sorted(self._laid)])
            self._told = _encoded({"bytes": len(packed)}) + packed
        return _Line(self._told)


@dataclass(frozen=True)
class _Line:
    """An answer as it is written."""

    encoded: bytes


class _Space:
    """The keys of one generation of one job.

    Whoever waits is woken once, when what it waits for is there: with thousands of members it would take all the time to ask each at each key.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self._values: dict[str, str] = {}
        self._gatherings: dict[str, _Gathering] = {}
        self._for_keys: dict[str, list[asyncio.Future[None]]] = {}
        self._is_dropped = False

    def drop(self) -> None:
        self._is_dropped = True
        for waiting in self._for_keys.values():
            _wake(waiting)
        for gathering in self._gatherings.values():
            gathering.wake()

    def set(self, key: str, value: str) -> None:
        if len(self._values) >= _MOST_KEYS:
            raise _Refused
        self._values[key] = value
        _wake(self._for_keys.pop(key, []))

    def add(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, "0")) + amount
        self.set(key, str(total))
        return total

    def delete(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def holds(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def value(self, key: str) -> str:
        return self._values[key]

    async def until_held(self, keys: list[str]) -> None:
        for key in keys:
            while key not in self._values:
                await self._wait(self._for_keys.setdefault(key, []))

    async def gather(self, name: str, rank: int, count: int, value: dict[str, Any]) -> _Gathering:
        """Waits until all have laid theirs."""
        if len(self._gatherings) >= _MOST_GATHERINGS and name not in self._gatherings:
            raise _Refused
        gathering = self._gatherings.setdefault(name, _Gathering(count))
        if gathering.count != count or not 0 <= rank < count:
            message = f"rank {rank} of {count} at {name!r}, where {gathering.count} meet"
            raise _Refused(message)
        gathering.lay(rank, value)
        while not gathering.is_whole:
            await self._wait(gathering.waiting())
        return gathering

    async def _wait(self, waiting: list[asyncio.Future[None]]) -> None:
        if not self._is_dropped:
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]
        if self._is_dropped:
            raise _Superseded


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for one in waiting:
        if not one.done():
            one.set_result(None)


class Rendezvous:
    """The server. All methods are called from the agent's event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._spaces: dict[tuple[str, int], _Space] = {}
        self._newest: dict[str, int] = {}
        self._admitted = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, preferred_port: int = 0) -> int:
        """Listens, on ``preferred_port`` if that is free: after a restart of the agent, generations still name the old port."""
        try:
            self._server = await self._listen(preferred_port)
        except OSError:
            self._server = await self._listen(0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def admit(self, generation: Generation) -> None:
        """Opens the space of a generation, and drops those of the same job that are older. Telling it twice changes nothing."""
        newest = self._newest.get(generation.job, 0)
        if generation.number <= newest:
            return
        self._newest[generation.job] = generation.number
        self._drop_older(generation.job, generation.number)
        self._spaces[generation.job, generation.number] = _Space(generation.token)
        self._admitted.set()
        self._admitted = asyncio.Event()

    def put(self, generation: Generation, key: str, value: str) -> None:
        """Says something to those who meet here, on behalf of this agent. Nobody hears it once there is a newer generation."""
        space = self._spaces.get((generation.job, generation.number))
        if space is not None:
            space.set(key, value)

    def forget(self, job: str) -> None:
        """The job is over on this node."""
        self._drop_older(job, self._newest.pop(job, 0) + 1)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, self._address, port, limit=_LONGEST_LINE, backlog=_BACKLOG)

    def _drop_older(self, job: str, number: int) -> None:
        for key in [key for key in self._spaces if key[0] == job and key[1] < number]:
            self._spaces.pop(key).drop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._converse(reader, writer)
        writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        space: _Space | None = None
        while line := await reader.readline():
            try:
                request = json.loads(line)
                if space is None:
                    space = await self._open(request)
                    value: Any = True
                else:
                    value = await _OPERATIONS.get(str(request.get("op")), _unknown)(space, request)
                answer = value.encoded if isinstance(value, _Line) else _encoded({"value": value})
            except (_Refused, _Superseded, _UnknownOperation) as refusal:
                answer = _encoded({"error": refusal.code, "message": str(refusal)})
            except (ValueError, KeyError, TypeError, AttributeError) as mistake:
                answer = _encoded({"error": "refused", "message": f"not a request: {mistake!r}"})
            writer.write(answer)
            await writer.drain()
            if space is None:
                await _linger(reader, writer)
                return

    async def _open(self, request: dict[str, Any]) -> _Space:
        """A process may hear of a generation before this agent does, so an unknown one is waited for a while."""
        job, number = str(request["job"]), int(request["generation"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_PATIENCE_S):
                while self._newest.get(job, 0) < number:
                    await self._admitted.wait()
        space = self._spaces.get((job, number))
        if space is None and self._newest.get(job, 0) > number:
            raise _Superseded
        if space is None or not hmac.compare_digest(space.token.encode(), str(request["token"]).encode()):
            message = "unknown job or generation, or wrong token"
            raise _Refused(message)
        return space


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads what comes after a refused opening: were the connection closed before that, it would be reset, and the answer lost with it."""
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(_CHUNK):
                pass


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


async def _set(space: _Space, request: dict[str, Any]) -> bool:
    space.set(str(request["key"]), str(request["value"]))
    return True


async def _get(space: _Space, request: dict[str, Any]) -> str:
    key = str(request["key"])
    await space.until_held([key])
    return space.value(key)


async def _get_all(space: _Space, request: dict[str, Any]) -> list[str]:
    keys = [str(key) for key in request["keys"]]
    await space.until_held(keys)
    return [space.value(key) for key in keys]


async def _wait(space: _Space, request: dict[str, Any]) -> bool:
    keys = [str(key) for key in request["keys"]]
    await space.until_held(keys)
    return True


async def _gather(space: _Space, request: dict[str, Any]) -> _Line:
    return (await _met(space, request, dict(request["value"]))).told()


async def _meet(space: _Space, request: dict[str, Any]) -> bool:
    await _met(space, request, {})
    return True


async def _met(space: _Space, request: dict[str, Any], value: dict[str, Any]) -> _Gathering:
    return await space.gather(str(request["name"]), int(request["rank"]), int(request["count"]), value)


async def _add(space: _Space, request: dict[str, Any]) -> int:
    return space.add(str(request["key"]), int(request["amount"]))


async def _check(space: _Space, request: dict[str, Any]) -> bool:
    return space.holds([str(key) for key in request["keys"]])


async def _delete(space: _Space, request: dict[str, Any]) -> bool:
    return space.delete(str(request["key"]))


async def _unknown(_space: _Space, request: dict[str, Any]) -> NoReturn:
    message = f"{request.get('op')!r} is not one of {', '.join(sorted(_OPERATIONS))}"
    raise _UnknownOperation(message)


_OPERATIONS: dict[str, Callable[[_Space, dict[str, Any]], Awaitable[Any]]] = {
    "set": _set,
    "get": _get,
    "get-all": _get_all,
    "wait": _wait,
    "gather": _gather,
    "meet": _meet,
    "add": _add,
    "check": _check,
    "delete": _delete,
}
