"""The init of a local node: the one process that lives as long as the node does. Standard library only, and little of it.

``python -I -S agent/shepherd.py`` detaches itself, becomes the reaper of everything that is started on the node, and starts the agent, again
whenever it ends. What would break without it: an agent that died would stay dead; orphaned training processes would pass to the machine's
init and their exit status would be lost; a released node would leave processes behind.

It reads its environment: ``EVERSTEP_NODE_ID``, ``EVERSTEP_AGENT_STATE`` (the directory where it writes ``exits.jsonl``) and
``EVERSTEP_HOST_DIR`` (where it writes ``shepherd.json``). The agent inherits all of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36
_GONE = 64
"""The agent's exit code when the control plane says that the node has been released."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 10.0
"""An agent that lived this long did not die of its start; the next one starts at once."""
_GRACE_S = 2.0
_LAST_S = 5.0
_LONGEST_FILE = 1 << 20
_KEPT_LINES = 1000

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Shepherd:
    """``exits`` is where the exit statuses of orphans are noted, a JSON line each."""

    def __init__(self, node_id: str, exits: str, command: list[str], environ: dict[str, str]) -> None:
        self._node_id = node_id
        self._exits = exits
        self._command = command
        self._environ = environ
        self._agent = 0
        self._started_at = 0.0
        self._start_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._is_ending = False

    def run(self) -> None:
        """Returns when nothing of the node is alive any more."""
        while not self._is_ending:
            if not self._agent and time.monotonic() >= self._start_at:
                self._start_agent()
            wait_s = 60.0 if self._agent else max(0.0, self._start_at - time.monotonic())
            heard = signal.sigtimedwait(_SIGNALS, wait_s)
            if heard is not None and heard.si_signo in (signal.SIGTERM, signal.SIGINT):
                break
            self._reap()
        self._end()

    def _start_agent(self) -> None:
        # Our own mask and handlers are not for it: what is blocked or ignored here would be so in everything that it starts.
        try:
            self._agent = os.posix_spawn(self._command[0], self._command, self._environ, setsigmask=(), setsigdef=_SIGNALS)
        except OSError as error:
            # No memory, no free process id, an interpreter that is being replaced: it passes, and the node's training must not end with us.
            with suppress(OSError):
                sys.stderr.write(f"shepherd: the agent cannot be started, trying on: {error}\n")
            self._rest(time.monotonic())
            return
        self._started_at = time.monotonic()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent:
                self._agent_ended(status)
            else:
                self._note(pid, status)

    def _agent_ended(self, status: int) -> None:
        now = time.monotonic()
        self._agent = 0
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _GONE:
            self._is_ending = True
            return
        if now - self._started_at > _STEADY_S:
            self._pause_s = _FIRST_PAUSE_S
        self._rest(now)

    def _rest(self, now: float) -> None:
        self._start_at = now + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    def _note(self, pid: int, status: int) -> None:
        line = json.dumps({"pid": pid, "status": status}) + "\n"
        with suppress(OSError):
            descriptor = os.open(self._exits, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, line.encode())
            length = os.fstat(descriptor).st_size
            os.close(descriptor)
            if length > _LONGEST_FILE:
                self._shorten()

    def _shorten(self) -> None:
        """Old lines tell of processes that everybody has heard of. Replaced in one piece: the agent may read it at any time."""
        with open(self._exits) as whole:  # noqa: PTH123  (pathlib would double our size)
            kept = whole.readlines()[-_KEPT_LINES:]
        with open(self._exits + ".new", "w") as shorter:  # noqa: PTH123  (as above)
            shorter.writelines(kept)
        os.replace(self._exits + ".new", self._exits)  # noqa: PTH105  (as above)

    def _end(self) -> None:
        """Asks everything of the node to end, then makes it."""
        self._signal_all(signal.SIGTERM)
        self._await_end(_GRACE_S)
        deadline = time.monotonic() + _LAST_S
        while time.monotonic() < deadline and self._signal_all(signal.SIGKILL):
            self._await_end(0.2)

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._reap()
        while time.monotonic() < deadline and self._members():
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)
            self._reap()

    def _signal_all(self, number: int) -> int:
        members = self._members()
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return len(members)

    def _members(self) -> list[int]:
        """Every live process that carries the node's id, or descends from us: what clears its environment is still our child."""
        own = os.getpid()
        parents = {int(name): _parent(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  (as above)
        mark = b"EVERSTEP_NODE_ID=" + self._node_id.encode()
        return [
            pid
            for pid, parent in parents.items()
            if pid != own and parent and (_descends(pid, own, parents) or _carries(pid, mark))
        ]


def _parent(pid: str) -> int:
    """0 for a process that is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123  (pathlib would double our size)
            state, parent = stat.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return 0
    return 0 if state in (b"Z", b"X") else int(parent)


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    seen = 0
    while pid and seen < len(parents):
        pid = parents.get(pid, 0)
        seen += 1
        if pid == ancestor:
            return True
    return False


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:  # noqa: PTH123  (pathlib would double our size)
            return mark in environ.read().split(b"\0")
    except OSError:
        return False


def main(environ: dict[str, str]) -> int:
    """Returns at once in the process that was started; the shepherd is its orphan, in a session of its own."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, _SIGNALS)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        return 1
    _write_key(environ["EVERSTEP_HOST_DIR"])
    os.write(writer, b"1")
    os.close(writer)
    exits = environ["EVERSTEP_AGENT_STATE"] + "/exits.jsonl"
    Shepherd(environ["EVERSTEP_NODE_ID"], exits, [sys.executable, "-P", "-m", "agent"], environ).run()
    return 0


def _write_key(directory: str) -> None:
    """Which process we are: a process id and its start time, because ids are used again."""
    with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123  (pathlib would double our size)
        started = int(stat.read().rpartition(b")")[2].split()[19])
    with open(directory + "/shepherd.json.new", "w") as key:  # noqa: PTH123  (as above)
        json.dump({"pid": os.getpid(), "started": started}, key)
    os.replace(directory + "/shepherd.json.new", directory + "/shepherd.json")  # noqa: PTH105  (as above)


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))  # noqa: TID251  (an entry point)
