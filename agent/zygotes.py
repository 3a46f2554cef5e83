"""The agent's end of a zygote: the process that has torch imported and forks training processes on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_IMPORT_PATIENCE_S = 120.0
_FORK_PATIENCE_S = 10.0
_LONGEST_LINE = 1 << 20


class ZygoteFailed(Exception):
    """The zygote could not start, or is gone. The command is then started directly."""


class Zygote:
    """One per (interpreter, environment) on a node. Starts on the first fork."""

    def __init__(self, interpreter: str, environment: Mapping[str, str], log: Path, exited: Callable[[int, int], None]) -> None:
        self._interpreter = interpreter
        self._environment = dict(environment)
        self._log = log
        self._exited = exited
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._was_ready = False
        self._forks: dict[str, asyncio.Future[int]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._conversation: asyncio.Task[None] | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def has_died(self) -> bool:
        """It was of use once, and is gone: another one would be of use too. One that never got ready would only fail again."""
        return self._was_ready and self._conversation is not None and self._conversation.done()

    async def start(self) -> None:
        own, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as output:
            self._child = subprocess.Popen(  # noqa: ASYNC220, it returns at once; nothing waits for it here
                [self._interpreter, "-P", "-m", "everstep.resilience.zygote", str(theirs.fileno())],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=own, limit=_LONGEST_LINE)
        self._conversation = asyncio.get_running_loop().create_task(self._listen(reader))

    async def ready(self) -> None:
        """Waits until everything is imported. Raises ZygoteFailed."""
        try:
            async with asyncio.timeout(_IMPORT_PATIENCE_S):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            raise ZygoteFailed from error

    async def fork(self, request: dict[str, Any]) -> int:
        """Returns the pid. Raises ZygoteFailed."""
        try:
            await self.ready()
            if self._writer is None or self.has_died:
                raise ZygoteFailed
            forked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._forks[request["process"]] = forked
            self._writer.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(_FORK_PATIENCE_S):
                return await forked
        except (TimeoutError, ConnectionError) as error:
            raise ZygoteFailed from error

    async def stop(self) -> None:
        """Closes the socket, upon which the zygote ends. Its children live on."""
        if self._writer is not None:
            self._writer.close()
        if self._conversation is not None:
            self._conversation.cancel()
            await asyncio.gather(self._conversation, return_exceptions=True)
        if self._child is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._end_child, self._child)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                self._hear(json.loads(line))
        _fail(self._ready)
        for forked in self._forks.values():
            _fail(forked)

    def _hear(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._was_ready = True
            self._ready.set_result(True)
        elif "forked" in message:
            forked = self._forks.pop(message["forked"], None)
            if forked is not None and not forked.done():
                forked.set_result(message["pid"])
        elif "exited" in message:
            self._exited(message["exited"], message["status"])

    @staticmethod
    def _end_child(child: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(2.0)
            return
        child.kill()
        child.wait()


class Zygotes:
    """The zygotes of a node, one for all processes of an (interpreter, environment); each ends with the last job that uses it."""

    def __init__(self, exited: Callable[[int, int], None]) -> None:
        self._exited = exited
        self._starting: dict[tuple[str, tuple[tuple[str, str], ...]], asyncio.Task[Zygote]] = {}
        self._jobs: dict[tuple[str, tuple[tuple[str, str], ...]], set[str]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def get(self, interpreter: str, environment: Mapping[str, str], log: Path, job: str) -> Zygote:
        """Who asks for the same one shares its start, and its failure. One that was killed is replaced."""
        key = (interpreter, tuple(sorted(environment.items())))
        self._jobs.setdefault(key, set()).add(job)
        if key in self._starting and _has_died(self._starting[key]):
            self._leave(self._starting.pop(key))
        if key not in self._starting:
            zygote = Zygote(interpreter, environment, log, self._exited)
            self._starting[key] = asyncio.get_running_loop().create_task(_started(zygote))
        return await asyncio.shield(self._starting[key])

    def release(self, is_wanted: Callable[[str], bool]) -> None:
        """Ends those whose jobs are all over. Not before the last child is gone: a zygote is who knows how its children ended."""
        for key, jobs in list(self._jobs.items()):
            if not any(is_wanted(job) for job in jobs):
                del self._jobs[key]
                self._leave(self._starting.pop(key))

    def _leave(self, starting: asyncio.Task[Zygote]) -> None:
        leaving = asyncio.get_running_loop().create_task(_stop(starting))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def stop(self) -> None:
        self.release(lambda _: False)
        await asyncio.gather(*self._leaving, return_exceptions=True)


async def _started(zygote: Zygote) -> Zygote:
    await zygote.start()
    return zygote


def _has_died(starting: asyncio.Task[Zygote]) -> bool:
    return starting.done() and starting.exception() is None and starting.result().has_died


async def _stop(starting: asyncio.Task[Zygote]) -> None:
    with contextlib.suppress(OSError):  # an interpreter that is not there; who asked for it was told so
        await (await starting).stop()


def _fail(waiting: asyncio.Future[Any]) -> None:
    if not waiting.done():
        waiting.set_exception(ZygoteFailed())
        waiting.exception()  # nobody may be waiting any more; that is no error
