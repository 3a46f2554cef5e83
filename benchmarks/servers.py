"""The servers that are measured: ours over a Postgres of its own, and moto_server. And what their processes have cost."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import psutil
from alembic import command
from alembic.config import Config

from benchmarks.load import KEY_ID, SECRET
from everstep.embedded.postgres import ephemeral_postgres
from models.session import connect

START_S = 30.0
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Measured:
    """A server's address, and every process that works for it: itself, and its database's postmaster."""

    url: str
    processes: tuple[int, ...]
    database_url: str = ""

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far, children that have ended included."""
        return sum(_tree_cpu_s(pid) for pid in self.processes)


@contextmanager
def moto() -> Iterator[Measured]:
    port = _free_port()
    with _running([_moto_python(), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], f"http://127.0.0.1:{port}") as pid:
        yield Measured(f"http://127.0.0.1:{port}", (pid,))


@contextmanager
def everstep(directory: Path) -> Iterator[Measured]:
    """As `everstep up` starts the API, over a database that is migrated and empty."""
    port = _free_port()
    with ephemeral_postgres(directory) as database_url:
        _migrate(database_url)
        url = f"http://127.0.0.1:{port}"
        arguments = ["uvicorn", "--factory", "api.app:create_app", "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
        with _running([sys.executable, "-m", *arguments], f"{url}/healthz", _environment(database_url)) as pid:
            yield Measured(url, (pid, _postmaster(database_url)), database_url)


def _moto_python() -> str:
    """Of the environment that `make bench` builds for it; else this one, where it may be installed as well."""
    own = _ROOT / ".venv-clients" / "moto-server" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _environment(database_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "EVERSTEP_DATABASE_URL": database_url,
        "EVERSTEP_BROKER_URL": "redis://127.0.0.1:1/0",
        "EVERSTEP_MASTER_KEY": base64.b64encode(bytes(32)).decode(),
        "EVERSTEP_BOOTSTRAP_ACCESS_KEY_ID": KEY_ID,
        "EVERSTEP_BOOTSTRAP_SECRET_ACCESS_KEY": SECRET,
        "EVERSTEP_RATE_LIMIT": "100000",  # counted, as always, and never reached
    }


@contextmanager
def _running(arguments: list[str], ready_url: str, environment: dict[str, str] | None = None) -> Iterator[int]:
    with subprocess.Popen(arguments, env=environment, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _await_ready(process, ready_url)
            yield process.pid
        finally:
            process.terminate()


def _await_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, f"{process.args} ended at its start"
        assert time.monotonic() < deadline, f"{process.args} did not start in time"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.05)


def _migrate(database_url: str) -> None:
    config = Config(_ROOT / "alembic.ini")
    engine = connect(database_url, pool_size=1)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()


def _postmaster(database_url: str) -> int:
    """The parent of any backend."""
    engine = connect(database_url, pool_size=1)
    with engine.connect() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        parent: int = psutil.Process(backend).ppid()
    engine.dispose()
    return parent


def _tree_cpu_s(pid: int) -> float:
    root = psutil.Process(pid)
    own = root.cpu_times()
    total: float = own.user + own.system + own.children_user + own.children_system
    for child in root.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # ended meanwhile: its parent has counted it, or will
            times = child.cpu_times()
            total += times.user + times.system
    return total


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
