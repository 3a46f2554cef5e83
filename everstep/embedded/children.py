"""Child processes that never outlive their parent.

A child asks the kernel for a signal on its parent's death (Linux ``PR_SET_PDEATHSIG``). Two things would break that:

* the kernel sends it when the *thread* that forked ends, so children are started from the main thread only;
* it is cleared by a change of user, so it is asked for after ``setuid``, which is when ``preexec_fn`` runs.
"""

import ctypes
import os
import pwd
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_PORTS = range(15_000, 32_000)
_DRAWS = 100

# Postgres refuses to run as root. The account `postgres` comes last: a server of production may share it with us.
_UNPRIVILEGED = ("nobody", "daemon", "postgres")


@dataclass(frozen=True)
class Account:
    """A user without rights, for a server that refuses to run as root."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Command:
    """All that it takes to start a process. ``config`` is fed to its standard input (secrets stay out of ``ps``)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path = Path("/")
    account: Account | None = None
    keep_fds: Sequence[int] = ()
    config: str | None = None
    on_parent_death: signal.Signals = signal.SIGTERM
    stop_with: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0


def spawn(command: Command, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Starts a child in a session of its own, so that Ctrl-C in a terminal reaches only the supervisor."""
    account = command.account
    process = subprocess.Popen(
        command.argv,
        env=command.env,
        cwd=command.cwd,
        stdin=subprocess.DEVNULL if command.config is None else subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=tuple(command.keep_fds),
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        preexec_fn=_die_with_parent(command.on_parent_death),
    )
    if command.config is not None and process.stdin is not None:
        with suppress(BrokenPipeError):  # it died at once; its exit status says so to whoever waits for it
            process.stdin.write(command.config.encode())
            process.stdin.close()
    return process


def stop(process: subprocess.Popen[bytes], command: Command) -> int:
    """Ends a child and reaps it: first politely, then for good. Returns its exit status."""
    if process.poll() is None:
        process.send_signal(command.stop_with)
        try:
            process.wait(command.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def unprivileged_account(directory: Path) -> Account | None:
    """The account that runs a server which refuses root; None when we are not root anyway.

    ``directory`` decides: an existing one belongs to the account that made it, in an empty place the first account counts
    that may own files here (in a container with few mapped users, ``nobody`` may not).

    Raises:
        LookupError: this machine has no unprivileged account that may own files in ``directory``.
    """
    if os.geteuid() != 0:
        return None
    owner = directory.stat()
    if owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in _UNPRIVILEGED:
        with suppress(KeyError, OSError):
            entry = pwd.getpwnam(name)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
            return Account(entry.pw_uid, entry.pw_gid)
    message = f"none of the accounts {', '.join(_UNPRIVILEGED)} may own files in {directory}; run as a normal user instead"
    raise LookupError(message)


def free_port() -> int:
    """A loopback TCP port that nobody listens on. Another program may take it before you do; be ready to try again.

    Drawn below the range from which the kernel gives ports to outgoing connections: one of those would be in a server's way later.

    Raises:
        OSError: a hundred ports were drawn, and none was free.
    """
    for _ in range(_DRAWS):
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    message = f"no free port among {_DRAWS} drawn from {_PORTS.start} to {_PORTS.stop}"
    raise OSError(message)


def _die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    libc = _LIBC
    if libc is None:
        return None
    parent = os.getpid()

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # it died before we asked, so the signal will never come
            os._exit(1)

    return ask_kernel
