"""What runs in a home and why it is not ready, from outside: true also when the supervisor is dead."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from everstep.embedded import binaries, probes, procfs, state
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.state import Phase, ServiceState, StackState

_DISTRIBUTIONS = {"api": "uvicorn", "worker-fast": "celery", "worker-slow": "celery", "beat": "celery", "migrate": "alembic"}


@dataclass(frozen=True)
class ServiceRow:
    """One service. A process that has died since the supervisor wrote of it counts as crashed."""

    name: str
    phase: Phase
    pid: int | None
    restarts: int
    version: str | None
    why: str | None

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY


@dataclass(frozen=True)
class Survey:
    """The whole. ``readyz`` is the API's own answer, None when it gave none."""

    home: str
    is_ready: bool
    why: str | None
    url: str | None
    supervisor_pid: int | None
    services: tuple[ServiceRow, ...] = ()
    readyz: Any = None
    versions: Mapping[str, str | None] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        wire = asdict(self)
        wire["ready"] = wire.pop("is_ready")
        wire["services"] = [
            {**service, "ready": row.is_ready} for service, row in zip(wire["services"], self.services, strict=True)
        ]
        return wire


def survey(home: Home, environ: Mapping[str, str]) -> Survey:
    found = state.read(home)
    versions = _versions(environ)
    if found is None:
        return Survey(
            str(home.root), False, f"no stack in {home.root}; start one with `everstep up`", None, None, versions=versions
        )
    rows = tuple(_row(name, service, found, versions) for name, service in found.services.items())
    readyz = probes.http_status(found.port, "/readyz") if found.is_supervised else None
    why = _why(found, rows, readyz)
    return Survey(
        home=str(home.root),
        is_ready=why is None,
        why=why,
        url=found.url,
        supervisor_pid=found.supervisor_pid if found.is_supervised else None,
        services=rows,
        readyz={"status": readyz[0], "body": readyz[1]} if isinstance(readyz, tuple) else None,
        versions=versions,
    )


def _row(name: str, service: ServiceState, found: StackState, versions: Mapping[str, str | None]) -> ServiceRow:
    phase, why = service.phase, service.why
    if service.key and not procfs.is_alive(service.key):
        phase, why = Phase.CRASHED, "its process is gone"
    elif not found.is_supervised and not service.key:
        phase = Phase.STOPPED
    known = versions.get(name) or versions.get(_DISTRIBUTIONS.get(name, "everstep"))
    return ServiceRow(name, phase, service.pid, service.restarts, known, why)


def _why(found: StackState, rows: tuple[ServiceRow, ...], readyz: tuple[int, Any] | str | None) -> str | None:
    if not found.is_supervised:
        if found.phase is Phase.STOPPED:
            return "the stack is stopped; start it with `everstep up`"
        return "the supervisor has died; `everstep up` repairs the stack"
    unready = [f"{row.name} is {row.phase}" + (f" ({row.why})" if row.why else "") for row in rows if not row.is_ready]
    if unready:
        return "; ".join(unready)
    if isinstance(readyz, str):
        return readyz
    if readyz and readyz[0] != 200:  # noqa: PLR2004 - OK
        return f"/readyz answers {readyz[0]}: {readyz[1]}"
    return None if found.phase is Phase.READY else f"the stack is {found.phase}"


def _versions(environ: Mapping[str, str]) -> dict[str, str | None]:
    return {
        "everstep": _distribution("everstep"),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "postgres": _program(lambda: binaries.postgres_bin(environ) / "postgres"),
        "valkey": _program(lambda: binaries.valkey_server(environ)),
        **{name: _distribution(name) for name in ("alembic", "celery", "fastapi", "uvicorn")},
    }


def _distribution(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _program(found: Callable[[], Path]) -> str | None:
    """The number in what a server says of itself: ``postgres (PostgreSQL) 18.4``, ``Valkey server v=9.1.2 sha=…``."""
    try:
        told = subprocess.run([found(), "--version"], capture_output=True, text=True, check=False, cwd="/", timeout=10).stdout
    except (StackError, OSError, subprocess.TimeoutExpired):
        return None
    words = [word.removeprefix("v=") for word in told.split()]
    return next((word for word in words if word[:1].isdigit()), None)
