"""A real Postgres under our own feet: made, started and repaired without its wrapper, root or not.

Run by root, the server runs as an account without rights. That account need not be able to walk to the data directory
(a home of mode 0700, pytest's temporary directories): it inherits an open descriptor of it and goes through
``/proc/self/fd``. Nothing listens but a loopback TCP port, and that asks for a SCRAM password.
"""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from everstep.embedded import binaries, probes, procfs
from everstep.embedded.children import Account, Command, free_port, spawn, stop, unprivileged_account
from everstep.embedded.errors import StackError

USER = "everstep"
DATABASE = "everstep"
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
_POLL_SECONDS = 0.02

# What a database of tests may do without: all of it only matters after a power cut.
_NOT_DURABLE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


@dataclass(frozen=True)
class PostgresServer:
    """One data directory and the server over it. ``directory`` is ours alone; the data lie in ``directory/data``."""

    directory: Path
    port: int
    password: str = field(repr=False)
    binaries: Path
    durable: bool = True

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def dsn(self) -> str:
        return f"postgresql+psycopg://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        """Makes the data directory on the first start, and clears what a crash has left on a later one. Blocks ≤ 15 s.

        Raises:
            StackError: the data are of another major version, or initdb failed.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.data.exists():
            self._initialise()
        self._check_version()
        end_leftover(self.data)

    def command(self) -> Command:
        """How to start the server. The descriptor in it stays open for the next start."""
        account = unprivileged_account(self.data)
        place, kept = _inherited(self.data, account)
        options = [
            "unix_socket_directories=",
            "max_connections=200",
            "shared_buffers=64MB",
            "timezone=UTC",
            "log_timezone=UTC",
            *(() if self.durable else _NOT_DURABLE),
        ]
        return Command(
            argv=[
                *(str(binaries.reachable_for(account, self.binaries) / "postgres"), "-D", place),
                *("-h", "127.0.0.1", "-p", str(self.port)),
                *(word for option in options for word in ("-c", option)),
            ],
            env=_ENVIRONMENT,
            account=account,
            keep_fds=kept,
            on_parent_death=signal.SIGINT,  # fast shutdown: sessions are rolled back, no recovery at the next start
            stop_with=signal.SIGINT,
        )

    def why_not_ready(self) -> str | None:
        return probes.postgres(self.port, USER)

    def create_database(self) -> None:
        """Makes the database if it is missing. The server has to be ready.

        Raises:
            StackError: the server refuses, most likely because the password is not that of this data directory.
        """
        environment = {**_ENVIRONMENT, "PGPASSWORD": self.password, "PGCONNECT_TIMEOUT": "10"}
        made = subprocess.run(
            [self.binaries / "createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, DATABASE],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode and "already exists" not in made.stderr:
            message = f"cannot create the database {DATABASE!r}: {made.stderr.strip()}"
            raise StackError(message)

    def _initialise(self) -> None:
        """Runs initdb beside the final place: a half-made directory after a crash is thrown away, never used."""
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        account = unprivileged_account(fresh)
        place, kept = _inherited(fresh, account)
        with tempfile.TemporaryFile(dir=self.directory) as pwfile:
            pwfile.write(self.password.encode() + b"\n")
            pwfile.flush()
            if account:
                os.fchown(pwfile.fileno(), account.uid, account.gid)
            made = subprocess.run(
                [
                    *(binaries.reachable_for(account, self.binaries) / "initdb", "-D", place, "-U", USER),
                    *("-E", "UTF8", "--locale=C", "--auth=scram-sha-256", f"--pwfile=/dev/fd/{pwfile.fileno()}"),
                    *("--no-instructions", *(() if self.durable else ("--no-sync",))),
                ],
                env=_ENVIRONMENT,
                cwd="/",
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                pass_fds=(*kept, pwfile.fileno()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        for descriptor in kept:
            os.close(descriptor)
        if made.returncode:
            message = f"initdb failed in {self.directory}: {(made.stderr or made.stdout).strip()}"
            raise StackError(message)
        fresh.rename(self.data)

    def _check_version(self) -> None:
        found = (self.data / "PG_VERSION").read_text().strip()
        offered = subprocess.run(
            [self.binaries / "postgres", "--version"], capture_output=True, text=True, check=True, env=_ENVIRONMENT, cwd="/"
        ).stdout
        if f" {found}." not in offered and not offered.strip().endswith(f" {found}"):
            message = (
                f"{self.data} holds data of Postgres {found}, but the program is {offered.strip()!r}: install the version that "
                f"made them, or dump them with it, move the directory away and load the dump"
            )
            raise StackError(message)


@contextmanager
def ephemeral_postgres(directory: Path) -> Iterator[str]:
    """A throw-away server with an empty database, for tests: yields its SQLAlchemy URL. Takes about half a second.

    Enter it from the main thread (the server ends with the thread that started it). It is not durable; ``directory`` may be
    a temporary one that only its owner can enter.
    """
    server = PostgresServer(
        directory=directory / "postgres",
        port=free_port(),
        password=secrets.token_urlsafe(24),
        binaries=binaries.postgres_bin({}),
        durable=False,
    )
    server.prepare()
    command = server.command()
    with (server.directory / "postgres.log").open("ab") as log:
        process = spawn(command, log)
    try:
        _await_ready(process, server)
        server.create_database()
        yield server.dsn
    finally:
        stop(process, command)
        for descriptor in command.keep_fds:
            os.close(descriptor)


def _await_ready(process: subprocess.Popen[bytes], server: PostgresServer, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while why := server.why_not_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (server.directory / "postgres.log").read_text(errors="replace")[-2000:]
            message = f"Postgres did not start: {why}\n{log}"
            raise StackError(message)
        time.sleep(_POLL_SECONDS)


def _inherited(data: Path, account: Account | None) -> tuple[str, tuple[int, ...]]:
    """The name of ``data`` for the server, and the descriptors that it has to inherit for that name to mean something."""
    if account is None:
        return str(data), ()
    descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{descriptor}", (descriptor,)


def end_leftover(data: Path, seconds: float = 10.0) -> None:
    """Ends a server that an earlier supervisor has left over these data, and removes a stale lock file.

    Postgres takes any live process with the recorded id for its rival, a zombie or a stranger too, and would never start.
    """
    lock = data / "postmaster.pid"
    try:
        pid = int(lock.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return
    deadline = time.monotonic() + seconds
    if procfs.is_alive(pid) and procfs.working_directory(pid) == os.path.realpath(data):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        while procfs.is_alive(pid) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if procfs.is_alive(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with suppress(FileNotFoundError):
        lock.unlink()
