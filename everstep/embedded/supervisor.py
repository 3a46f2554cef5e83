"""The parent of all services: starts them in order, starts them again when they die, and ends with all of them.

All children are started from the main thread (see ``children``), which is the thread of the event loop. Everything
that blocks (initdb, a probe's connect) runs in other threads and starts no child that has to die with us.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from everstep.embedded import logs, procfs
from everstep.embedded.children import Command, spawn
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.service import Service
from everstep.embedded.state import Phase, ServiceState, StackState, write

_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 5.0
_HEALTHY_AFTER_SECONDS = 10.0
_TRIES_BEFORE_READY = 3
_GATE_POLL_SECONDS = 0.1
_KILLED_AFTER_SECONDS = 10.0
_FLOW_POLL_SECONDS = 3.0

Tell = Callable[[str, ServiceState], None]


@dataclass
class _Running:
    """A service, its state and the process that it has now."""

    service: Service
    state: ServiceState
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    command: Command | None = None
    process: subprocess.Popen[bytes] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs ``services`` until it is cancelled or told to stop. ``gate`` says why the whole is not ready (None: it is)."""

    def __init__(
        self,
        home: Home,
        state: StackState,
        services: Sequence[Service],
        *,
        gate: Callable[[], str | None],
        tell: Tell,
        start_seconds: float = 90.0,
        flow_seconds: float = 30.0,
    ) -> None:
        self._home = home
        self._state = state
        self._gate = gate
        self._tell = tell
        self._start_seconds = start_seconds
        self._flow_seconds = flow_seconds
        self._running = {service.name: _Running(service, ServiceState()) for service in services}
        self._stop = asyncio.Event()
        self._gate_passed = asyncio.Event()
        self._failure: asyncio.Future[None] | None = None

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Returns after a stop was asked for and everything has ended.

        Raises:
            StackError: a service kept dying before the stack was ever ready, or the start took too long.
        """
        self._failure = asyncio.get_running_loop().create_future()
        self._state.services = {name: running.state for name, running in self._running.items()}
        tasks = [asyncio.create_task(self._keep(running)) for running in self._running.values()]
        stopped = asyncio.create_task(self._stop.wait())
        try:
            started = asyncio.create_task(self._start())
            await _first(started, stopped, self._failure)
            if not self._stop.is_set():
                self._state.phase = Phase.READY
                write(self._home, self._state)
                on_ready()
                tasks.append(asyncio.create_task(self._watch_flow()))
                await _first(stopped, self._failure)
            started.cancel()
        finally:
            stopped.cancel()
            await self._end(tasks)

    def stop(self) -> None:
        """Asks for the end; may be called from a signal handler of the loop, more than once."""
        self._stop.set()

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(self._start_seconds):
                for running in self._running.values():
                    if running.service.is_task or running.service.why_not_ready:
                        await running.ready.wait()
                while why := await asyncio.to_thread(self._gate):
                    self._tell("stack", ServiceState(Phase.STARTING, why=why))
                    await asyncio.sleep(_GATE_POLL_SECONDS)
                self._gate_passed.set()
                for running in self._running.values():
                    await running.ready.wait()
        except TimeoutError:
            raise StackError(self._why_too_slow()) from None

    async def _keep(self, running: _Running) -> None:
        try:
            backoff = _FIRST_BACKOFF_SECONDS
            while not self._stop.is_set():
                began = time.monotonic()
                await self._live_once(running)
                if self._stop.is_set() or (running.service.is_task and running.ready.is_set()):
                    return
                self._check_patience(running)
                backoff = _FIRST_BACKOFF_SECONDS if time.monotonic() - began > _HEALTHY_AFTER_SECONDS else backoff
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
                running.state.restarts += 1
        except (StackError, OSError, LookupError) as error:
            self._fail(StackError(f"{running.service.name}: {error}"))

    async def _watch_flow(self) -> None:
        """Ready once is not ready for ever: a worker that hangs, or that no longer consumes, lives on and says nothing.

        Services that have no readiness of their own are known by the flow of work alone. When it has stopped for ``flow_seconds``, they are
        started again; what they were at is leased, and done again.
        """
        stopped_at: float | None = None
        while True:
            await asyncio.sleep(min(_FLOW_POLL_SECONDS, self._flow_seconds / 2))
            why = await asyncio.to_thread(self._gate)
            now = time.monotonic()
            stopped_at = None if why is None else stopped_at or now
            if stopped_at is not None and now - stopped_at > self._flow_seconds:
                stopped_at = None
                self._tell("stack", ServiceState(Phase.CRASHED, why=f"work has not flowed for {self._flow_seconds:.0f} s: {why}"))
                for running in self._running.values():
                    if running.process is not None and not running.service.is_task and running.service.why_not_ready is None:
                        _kill_group(running.process)

    async def _live_once(self, running: _Running) -> None:
        """One life of a service, from the wait for others to its end."""
        service = running.service
        self._set(running, Phase.WAITING, f"waits for {', '.join(service.needs)}" if service.needs else None)
        for need in service.needs:
            await self._running[need].ready.wait()
        await asyncio.to_thread(service.prepare)
        if self._stop.is_set():  # nothing is started behind the back of the end
            return
        running.command = running.command or service.command()
        with logs.open_log(self._home.logs, service.name) as log:
            process = running.process = spawn(running.command, log)
        running.ended = asyncio.Event()
        key = procfs.key_of(process.pid)
        running.state.pid, running.state.started = process.pid, key.started if key else None
        self._set(running, Phase.STARTING)
        with _watched(process.pid, running.ended):
            if not service.is_task:
                await self._await_ready(running)
            await running.ended.wait()
        status = _bury(running)
        if service.is_task and status == 0:
            await asyncio.to_thread(service.finish)
            running.ready.set()
            self._set(running, Phase.READY)
        elif not self._stop.is_set():
            self._set(running, Phase.CRASHED, _how_it_ended(status))

    async def _await_ready(self, running: _Running) -> None:
        service = running.service
        while not running.ended.is_set():
            if service.why_not_ready:
                why = await asyncio.to_thread(service.why_not_ready)
            else:
                why = None if self._gate_passed.is_set() else "ready when work flows through all of the stack"
            if why is None:
                await asyncio.to_thread(service.finish)
                running.ready.set()
                self._set(running, Phase.READY)
                return
            running.state.why = why
            with suppress(TimeoutError):
                await asyncio.wait_for(running.ended.wait(), service.poll_seconds)

    def _check_patience(self, running: _Running) -> None:
        """Before the stack was ever ready, a service that keeps dying will go on doing so: tell, do not hide it."""
        was_ready = self._state.phase is Phase.READY
        tries = 1 if running.service.is_task else _TRIES_BEFORE_READY
        if was_ready or running.state.restarts + 1 < tries:
            return
        log = self._home.logs / f"{running.service.name}.log"
        message = f"it does not start: {running.state.why}. The end of {log}:\n{logs.tail(log)}"
        raise StackError(message)

    def _fail(self, error: StackError) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Ends every service before the ones it needs. Bounded: what does not end is killed."""
        self._stop.set()
        self._state.phase = Phase.STOPPING
        write(self._home, self._state)
        remaining = dict(self._running)
        while remaining:
            needed = {need for running in remaining.values() for need in running.service.needs}
            wave = [running for name, running in remaining.items() if name not in needed] or list(remaining.values())
            await asyncio.gather(*(self._end_one(running) for running in wave))
            for running in wave:
                del remaining[running.service.name]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for running in self._running.values():
            _bury(running)
            for descriptor in running.command.keep_fds if running.command else ():
                os.close(descriptor)
        if self._failure is not None:
            self._failure.cancel()
        self._state.phase = Phase.STOPPED
        write(self._home, self._state)

    async def _end_one(self, running: _Running) -> None:
        process, command = running.process, running.command
        if process is not None and command is not None:
            self._set(running, Phase.STOPPING)
            with suppress(ProcessLookupError):
                os.kill(process.pid, command.stop_with)
            if not await _within(running.ended.wait(), command.stop_seconds):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await _within(running.ended.wait(), _KILLED_AFTER_SECONDS)
        self._set(running, Phase.STOPPED)

    def _set(self, running: _Running, phase: Phase, why: str | None = None) -> None:
        running.state.phase, running.state.why = phase, why
        write(self._home, self._state)
        self._tell(running.service.name, running.state)

    def _why_too_slow(self) -> str:
        waiting = [
            f"{name} ({running.state.why or running.state.phase})"
            for name, running in self._running.items()
            if not running.ready.is_set()
        ]
        why = ", ".join(waiting) or self._gate() or "it became ready just now"
        return f"the stack was not ready within {self._start_seconds:.0f} s: {why}. Logs are in {self._home.logs}"


def _bury(running: _Running) -> int:
    """Reaps a process that has ended, with whatever it has left in its session (a worker's pool). Returns its status."""
    process = running.process
    if process is None:
        return 0
    _kill_group(process)  # before wait(): until then nobody else can have this id
    running.ready.clear()
    running.process = running.state.pid = running.state.started = None
    return process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _watched:  # noqa: N801 - reads as a verb where it is used
    """Sets ``ended`` as soon as process ``pid`` ends, without reaping it."""

    def __init__(self, pid: int, ended: asyncio.Event) -> None:
        self._descriptor = os.pidfd_open(pid)
        self._ended = ended

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_reader(self._descriptor, self._ended.set)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


async def _first(*waiting: asyncio.Future[None] | asyncio.Task[None] | asyncio.Task[bool]) -> None:
    """Waits for the first to finish; raises its error if it has one."""
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()


async def _within(waiting: Awaitable[object], seconds: float) -> bool:
    try:
        await asyncio.wait_for(waiting, seconds)
    except TimeoutError:
        return False
    return True


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
