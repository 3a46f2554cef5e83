"""Processes that live and make no progress: which, for how long, and where they are.

Each training process says once a second how long ago its last step was, and whether it waits for others (its *pulse*). One that says that the limit
has passed is reported as it told it; one that says nothing for as long as its limit is frozen: stopped, or held by code that never gives the
interpreter's lock back. Who is to be given up is the control plane's to say: whoever waits is healthy, and only all ranks together show who is not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.evidence import HANG_AFTER_S, HANG_AFTER_VARIABLE, Hung, HungReport
from everstep.local_protocol import STACKS_SIGNAL
from everstep.protocol import Assignment, Report

from .processes import Record

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
HUNG_GRACE_S = 1.0
"""How long one that hangs has when it is to end: nobody expects it to listen."""
_STOPPED_STATES = frozenset("Tt")
_PY_SPY_S = 10.0
_SIGNALLED_S = 2.0
_LOOKS_A_SECOND = 20
_LONGEST_STACK = 12_000


@dataclass
class _Pulse:
    """The newest of one process. ``heard_at`` is of the agent's monotonic clock, moved on by time in which the agent itself stood still."""

    job: str
    generation: int = 0
    step: int = 0
    limit_s: float = HANG_AFTER_S
    heard_at: float = 0.0
    tells_at_s: float = 0.0
    is_condemned: bool = False


@dataclass
class _Looks:
    """When this agent looked last: what it did not hear while it stood still itself counts against nobody."""

    last: float = field(default_factory=time.monotonic)

    def slept(self, now: float) -> float:
        late, self.last = now - self.last - LOOK_EVERY_S, now
        return max(0.0, late)


class Hangs:
    """One per node, one event loop's. ``record`` finds a process that runs here; ``report`` must not block."""

    def __init__(self, report: Callable[[Report], None], record: Callable[[str], Record | None]) -> None:
        self._report = report
        self._record = record
        self._pulses: dict[str, _Pulse] = {}
        self._dumps: set[asyncio.Task[None]] = set()

    def hear(self, job: str, process: str, told: dict[str, Any]) -> None:
        """A pulse. One with a stack says that the limit has passed."""
        pulse = self._pulses.setdefault(process, _Pulse(job))
        pulse.generation, pulse.step, pulse.limit_s = told["generation"], told["step"], told["limit_s"]
        pulse.heard_at, pulse.tells_at_s = time.monotonic(), 0.0
        stack, seconds = told.get("stack"), told["seconds"]
        if seconds is None or seconds <= pulse.limit_s:
            pulse.is_condemned = False
        if stack is not None:
            how = Hung.WAITING if told["is_waiting"] else Hung.COMPUTING
            pulse.is_condemned = how is Hung.COMPUTING
            self._tell(process, pulse, how, seconds, stack)
            _append(self._record(process), f"everstep: no step for {seconds:.1f} s; this process is {how}:\n{stack}\n")

    def expect(self, assignment: Assignment) -> None:
        """Its ranks were ready once, and speak as long as they live: one that has not spoken to this agent yet is silent from now on.

        So one is found that was stopped before this agent began.
        """
        if assignment.launch.is_plain or assignment.generation is None:
            return
        limit_s = _limit(assignment.launch.env)
        for member in assignment.generation.members:
            if self._record(member.process) is not None:
                self._pulses.setdefault(member.process, _Pulse(assignment.job, limit_s=limit_s, heard_at=time.monotonic()))

    def forget(self, process: str) -> None:
        """It has ended, or is nobody's concern any more."""
        self._pulses.pop(process, None)

    def is_hung(self, process: str) -> bool:
        """Whether there is no use in asking it to leave."""
        pulse = self._pulses.get(process)
        return pulse is not None and pulse.is_condemned

    async def run(self) -> None:
        """Looks for those that are silent, for ever."""
        looks = _Looks()
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                now = time.monotonic()
                self.look(now, slept=looks.slept(now))
        finally:
            for dump in list(self._dumps):
                dump.cancel()

    def look(self, now: float, *, slept: float = 0.0) -> None:
        """Who has been silent for longer than its limit is frozen. ``slept`` seconds of that time nobody listened."""
        for process, pulse in list(self._pulses.items()):
            pulse.heard_at += slept
            silent = now - pulse.heard_at
            record = self._record(process)
            if record is None or record.has_exited:
                self.forget(process)
            elif silent > pulse.limit_s and silent >= pulse.tells_at_s:
                pulse.tells_at_s, pulse.is_condemned = silent * 2, True
                dump = asyncio.get_running_loop().create_task(self._tell_frozen(process, record, pulse, silent))
                self._dumps.add(dump)
                dump.add_done_callback(self._dumps.discard)

    async def _tell_frozen(self, process: str, record: Record, pulse: _Pulse, silent: float) -> None:
        stack = await stack_of(record)
        if pulse.tells_at_s:  # it has not spoken meanwhile
            self._tell(process, pulse, Hung.FROZEN, silent, stack)

    def _tell(self, process: str, pulse: _Pulse, how: Hung, seconds: float, stack: str) -> None:
        log.warning("process %s is %s and has made no progress for %.1f s", process, how, seconds)
        self._report(
            HungReport(pulse.job, process, pulse.generation, pulse.step, how, seconds, pulse.limit_s, stack[:_LONGEST_STACK])
        )


async def stack_of(record: Record) -> str:
    """Where a process is that does not say so itself, or why that cannot be told. It is in the process's log afterwards as well.

    py-spy reads the stack from outside, of a stopped process too; without it the process's own signal handler writes it, unless it is stopped.
    """
    state = _state_of(record.pid)
    said = f"process {record.pid} is {'stopped by a signal' if state in _STOPPED_STATES else f'in state {state}'}"
    told = await _spied(record.pid)
    if told:
        _append(record, f"everstep: this process does not answer; {said}:\n{told}\n")
    elif state not in _STOPPED_STATES:
        told = await _signalled(record)
    return f"{said}\n{told or 'Its stack could not be read: py-spy is not there, or may not look into it.'}"


def _limit(environment: Mapping[str, str]) -> float:
    with suppress(KeyError, ValueError):
        return float(environment[HANG_AFTER_VARIABLE])
    return HANG_AFTER_S


def _state_of(pid: int) -> str:
    """The letter of /proc, as R or T; ? of a process that is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "?"


def _py_spy(pid: int) -> str | None:
    """Beside the agent's interpreter, on the PATH, or beside the interpreter of the process."""
    beside = [Path(sys.executable).parent]
    with suppress(OSError, IndexError):
        interpreter = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        beside.append(Path(interpreter).parent)
    for folder in beside:
        if os.access(folder / "py-spy", os.X_OK):
            return str(folder / "py-spy")
    return shutil.which("py-spy")


async def _spied(pid: int) -> str:
    """Empty if it is not to be had."""
    tool = _py_spy(pid)
    if tool is None:
        return ""
    try:
        spy = await asyncio.create_subprocess_exec(
            *(tool, "dump", "--nonblocking", "--pid", str(pid)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(_PY_SPY_S):
            told, _ = await spy.communicate()
    except TimeoutError:
        spy.kill()
        await spy.wait()
        return ""
    return told.decode(errors="replace").strip() if spy.returncode == 0 else ""


async def _signalled(record: Record) -> str:
    """What the process's handler has written to its log; empty if it has none left to run, or no such handler."""
    if not _handles_signal(record.pid):
        return ""
    before = _size(record.log)
    with suppress(ProcessLookupError):
        os.kill(record.pid, STACKS_SIGNAL)
    size = before
    for _ in range(int(_SIGNALLED_S * _LOOKS_A_SECOND)):
        await asyncio.sleep(1 / _LOOKS_A_SECOND)
        size, known = _size(record.log), size
        if size == known > before:
            break
    return _read_from(record.log, before)


def _size(log_file: str) -> int:
    with suppress(OSError):
        return Path(log_file).stat().st_size
    return 0


def _read_from(log_file: str, position: int) -> str:
    with suppress(OSError), Path(log_file).open("rb") as stream:
        stream.seek(position)
        return stream.read(_LONGEST_STACK).decode(errors="replace").strip()
    return ""


def _handles_signal(pid: int) -> bool:
    """Whoever does not handle it would be ended by it."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)
    return False


def _append(record: Record | None, text: str) -> None:
    """To the process's log, where whoever looks for its last words finds it."""
    if record is not None:
        with suppress(OSError), Path(record.log).open("a") as stream:
            stream.write(text)
