"""A real Valkey for Celery's messages: append-only, never evicting, on loopback behind a password."""

import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from everstep.embedded import binaries, probes
from everstep.embedded.children import Command, free_port, spawn, stop
from everstep.embedded.errors import StackError

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ValkeyServer:
    """One directory with an append-only file, and the server over it."""

    directory: Path
    port: int
    password: str = field(repr=False)
    program: Path

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def command(self) -> Command:
        """How to start the server. Its configuration goes through standard input, so that no password shows in ``ps``."""
        config = (
            f"bind 127.0.0.1\nport {self.port}\nprotected-mode yes\nrequirepass {self.password}\n"
            f'dir "{self.directory}"\nappendonly yes\nappendfsync everysec\nsave ""\n'
            # Evicting a message would lose it silently; a full server answers an error, which the sender sees.
            f"maxmemory-policy noeviction\ndaemonize no\n"
        )
        return Command(
            argv=[str(self.program), "-"],
            env={"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"},
            cwd=self.directory,
            config=config,
            on_parent_death=signal.SIGTERM,
        )

    def why_not_ready(self) -> str | None:
        return probes.valkey(self.port, self.password)


@contextmanager
def ephemeral_valkey(directory: Path) -> Iterator[str]:
    """A throw-away broker for tests: yields its ``redis://`` URL. Takes about a tenth of a second.

    Enter it from the main thread: the server ends with the thread that started it.
    """
    server = ValkeyServer(
        directory=directory / "valkey", port=free_port(), password=secrets.token_urlsafe(24), program=binaries.valkey_server({})
    )
    server.prepare()
    command = server.command()
    with (server.directory / "valkey.log").open("ab") as log:
        process = spawn(command, log)
    try:
        _await_ready(process, server)
        yield server.url
    finally:
        stop(process, command)


def _await_ready(process: subprocess.Popen[bytes], server: ValkeyServer, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while why := server.why_not_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (server.directory / "valkey.log").read_text(errors="replace")[-2000:]
            message = f"Valkey did not start: {why}\n{log}"
            raise StackError(message)
        time.sleep(_POLL_SECONDS)
