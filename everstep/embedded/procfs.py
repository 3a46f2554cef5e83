"""What the kernel knows about processes. A process is its id *and* its start time: ids are used again.

A zombie counts as dead: in a container whose first process reaps nobody, it would otherwise live for ever.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE = 0
_START_TIME = 19
_DEAD = "ZX"
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class ProcessKey:
    """Names one process for ever. ``started`` is in clock ticks since the boot of the machine, as the kernel tells it."""

    pid: int
    started: int


def key_of(pid: int) -> ProcessKey | None:
    """None when no such process is alive."""
    fields = _stat(pid)
    if fields is None or fields[_STATE] in _DEAD:
        return None
    return ProcessKey(pid, int(fields[_START_TIME]))


def is_alive(process: int | ProcessKey) -> bool:
    """A bare id asks for any process with it; a key only for that very one."""
    if isinstance(process, ProcessKey):
        return key_of(process.pid) == process
    return key_of(process) is not None


def working_directory(pid: int) -> str | None:
    try:
        return str((_PROC / str(pid) / "cwd").readlink())
    except OSError:
        return None


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it is gone or not ours to read."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in raw.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def find(matches: Callable[[Mapping[str, str]], bool]) -> Iterator[ProcessKey]:
    """Every live process whose environment matches, except this one."""
    for entry in (path.name for path in _PROC.iterdir()):
        if entry.isdigit() and int(entry) != os.getpid() and matches(environment(int(entry))):
            key = key_of(int(entry))
            if key:
                yield key


def send(processes: Iterable[ProcessKey], number: signal.Signals) -> None:
    for process in processes:
        if is_alive(process):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def await_end(processes: Iterable[ProcessKey], seconds: float) -> list[ProcessKey]:
    """Waits until all are gone, at most that long; returns those that are not."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if is_alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = [process for process in left if is_alive(process)]
    return left


def end(processes: Iterable[ProcessKey], grace_seconds: float) -> list[ProcessKey]:
    """SIGTERM, then SIGKILL to those that stay. Returns those that even that did not end within five seconds."""
    asked = list(processes)
    send(asked, signal.SIGTERM)
    left = await_end(asked, grace_seconds)
    send(left, signal.SIGKILL)
    return await_end(left, 5.0)


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` after the program's name, which may itself hold spaces and brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
