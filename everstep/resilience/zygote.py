"""The parent of a node's training processes: everything heavy is imported once, then each process is a fork.

Run by the agent as ``python -P -m everstep.resilience.zygote <descriptor>``; the descriptor is one end of a stream socket.
It has one thread, has run no autograd and touched no device, because none of these survives a fork. When the agent goes away the zygote
ends; its children live on, and are reaped by the node's shepherd.

Agent → zygote   {"process", "script", "arguments", "working_dir", "env", "log", "record"}
zygote → agent   {"ready": true}   {"forked": process, "pid": …}   {"exited": pid, "status": …}
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel
import torch.optim

import everstep.data.batches
import everstep.resilience

_PRELOADED = (torch._dynamo, torch.distributed, torch.nn.parallel, torch.optim, everstep.data.batches, everstep.resilience)  # noqa: SLF001
_LONGEST_READ = 1 << 16
_CANNOT_START = 127
"""As the agent and shells say of a command that cannot be started."""
_SEED_OF_A_FRESH_TORCH = 67280421310721
"""What torch's generator holds in a new process; an import has moved the zygote's on, and each zygote's elsewhere."""


class Zygote:
    """Forks on request and tells of exits."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}
        self._unread = b""

    def serve(self) -> None:
        """Until the agent closes its end."""
        self._say({"ready": True})
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor != self._control.fileno():
                    poll.unregister(descriptor)
                    self._reap(descriptor)
                    continue
                received = self._control.recv(_LONGEST_READ)
                if not received:
                    return
                *lines, self._unread = (self._unread + received).split(b"\n")
                for line in lines:
                    poll.register(self._fork(json.loads(line)), select.POLLIN)

    def _fork(self, request: dict[str, Any]) -> int:
        """Returns a descriptor of the child. The child's record is on disk before its first line of user code runs."""
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            os.read(go_read, 1)
            os.close(go_read)
            self._leave_behind()
            _become(request)
        os.close(go_read)
        _write_record(Path(request["record"]), {**request["record_members"], "pid": pid, "start_time": start_time(pid)})
        os.close(go_write)
        watched = os.pidfd_open(pid)
        self._children[watched] = pid
        self._say({"forked": request["process"], "pid": pid})
        return watched

    def _reap(self, watched: int) -> None:
        pid = self._children.pop(watched)
        _, status = os.waitpid(pid, 0)
        os.close(watched)
        self._say({"exited": pid, "status": status})

    def _leave_behind(self) -> None:
        self._control.close()
        for watched in self._children:
            os.close(watched)

    def _say(self, message: dict[str, Any]) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")


def start_time(pid: int) -> int:
    """In clock ticks since boot; together with the pid it names a process for ever."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _write_record(path: Path, record: dict[str, Any]) -> None:
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(record))
    draft.replace(path)


def _become(request: dict[str, Any]) -> NoReturn:
    """Turns the fork into what ``python script.py`` would be, runs it, and ends the process with its exit code."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(request["env"])  # noqa: TID251, the child is to see what an exec would have given it
    torch.manual_seed(_SEED_OF_A_FRESH_TORCH)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    code = _run_script(request)
    _end(code)


def _run_script(request: dict[str, Any]) -> int:
    try:
        os.chdir(request["working_dir"])
        script = Path(request["script"]).absolute()
        source = script.read_bytes()
    except OSError as error:
        sys.stderr.write(f"everstep: cannot start {request['script']} in {request['working_dir']}: {error}\n")
        return _CANNOT_START
    try:
        _execute(script, source, [request["script"], *request["arguments"]])
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001, as the interpreter does with whatever reaches its top
        _tell_error(error)
        return 1
    return 0


def _execute(script: Path, source: bytes, argv: list[str]) -> None:
    """In a ``__main__`` of its own, which stays there: what the script pickles names that module."""
    sys.argv = argv
    sys.path.insert(0, str(script.parent))
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    exec(compile(source, str(script), "exec"), module.__dict__)  # noqa: S102, it is the user's own program


def _tell_error(error: BaseException) -> None:
    """A traceback that begins with the user's own first line: none of ours."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def _end(code: int) -> NoReturn:
    """As the interpreter ends, but without tearing modules down: threads of ours may be inside C++ and must not be joined."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        Zygote(control).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
