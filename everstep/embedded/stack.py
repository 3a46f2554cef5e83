"""The services of the embedded stack: which there are, in which order they start, and what each is told."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from everstep.embedded import binaries, probes
from everstep.embedded.children import Command
from everstep.embedded.credentials import Credentials
from everstep.embedded.home import Home, write_private
from everstep.embedded.postgres import PostgresServer
from everstep.embedded.service import Service
from everstep.embedded.settings import StackSettings
from everstep.embedded.state import StackState
from everstep.embedded.valkey import ValkeyServer

STACK_VARIABLE = "EVERSTEP_STACK_HOME"
"""Marks our own processes, so that they are found after a crash that left no readable ``stack.json``."""

_WORKER_SLOTS = 2
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Servers:
    """The embedded database and broker; None where the environment names one that runs already."""

    postgres: PostgresServer | None
    valkey: ValkeyServer | None


def servers(home: Home, state: StackState, keys: Credentials, settings: StackSettings) -> Servers:
    postgres = valkey = None
    if settings.database_url is None:
        found = binaries.postgres_bin(settings.inherited)
        postgres = PostgresServer(home.root / "postgres", state.database_port, keys.database_password, found)
    if settings.broker_url is None:
        program = binaries.valkey_server(settings.inherited)
        valkey = ValkeyServer(home.root / "valkey", state.broker_port, keys.broker_password, program)
    return Servers(postgres, valkey)


def server_services(embedded: Servers) -> list[Service]:
    """Postgres and Valkey, as far as they are embedded. They need nobody and start side by side."""
    services = []
    if embedded.postgres:
        server = embedded.postgres
        services.append(
            Service(
                "postgres",
                server.command,
                prepare=server.prepare,
                why_not_ready=server.why_not_ready,
                finish=server.create_database,
            )
        )
    if embedded.valkey:
        broker = embedded.valkey
        services.append(Service("valkey", broker.command, prepare=broker.prepare, why_not_ready=broker.why_not_ready))
    return services


def environment(home: Home, state: StackState, keys: Credentials, settings: StackSettings, embedded: Servers) -> dict[str, str]:
    """What every process of the control plane gets to read."""
    database_url = embedded.postgres.dsn if embedded.postgres else settings.database_url
    broker_url = embedded.valkey.url if embedded.valkey else settings.broker_url
    return {
        **settings.inherited,
        "PYTHONUNBUFFERED": "1",
        STACK_VARIABLE: str(home.root),
        "EVERSTEP_DATABASE_URL": str(database_url),
        "EVERSTEP_BROKER_URL": str(broker_url),
        "EVERSTEP_OBJECT_STORE_URL": settings.object_store_url or home.store.as_uri(),
        "EVERSTEP_PROVIDER": settings.provider,
        "EVERSTEP_REGION": settings.region,
        "EVERSTEP_ACCOUNT_ID": settings.account_id,
        "EVERSTEP_MASTER_KEY": settings.master_key or keys.master_key,
        "EVERSTEP_HOME_DIR": str(home.root),
        "EVERSTEP_API_URL": state.url,
        "EVERSTEP_STACK_BEGAN_AT": str(state.began_at),
        "EVERSTEP_BOOTSTRAP_ACCESS_KEY_ID": keys.access_key_id,
        "EVERSTEP_BOOTSTRAP_SECRET_ACCESS_KEY": keys.secret_access_key,
        "EVERSTEP_BOOTSTRAP_TOKEN": keys.token,
    }


def control_plane(root: Path, home: Home, port: int, env: Mapping[str, str], servers_needed: Sequence[str]) -> list[Service]:
    """Our own processes, run from the checkout at ``root``: migrations first, then all others side by side."""
    needs = (*servers_needed, "migrate")
    schedule = home.root / "beat-schedule"

    def python(*arguments: str) -> Callable[[], Command]:
        # Once the supervisor has died the database and the broker are ending too, so nothing is left to end politely with: a worker
        # would hang in the attempt. What it had begun is leased in the database and done again; its pool ends with its pipes.
        command = Command(
            argv=[sys.executable, "-m", *arguments], env=env, cwd=root, on_parent_death=SIGKILL, stop_seconds=_STOP_SECONDS
        )
        return lambda: command

    def worker(queue: str) -> Service:
        flags = ("--without-mingle", "--without-gossip", "--loglevel", "INFO")
        argv = ("celery", "-A", "workers.app", "worker", "-Q", queue, "-n", f"{queue}@%h", "-c", str(_WORKER_SLOTS), *flags)
        return Service(f"worker-{queue}", python(*argv), needs, poll_seconds=0.1)

    # Which proxies are believed is ours to say (EVERSTEP_TRUSTED_PROXIES); uvicorn believes everybody on this machine.
    flags = ("--host", "127.0.0.1", "--port", str(port), "--no-access-log", "--no-proxy-headers")
    uvicorn = ("uvicorn", "--factory", "api.app:create_app", *flags)
    beat = ("celery", "-A", "workers.app", "beat", "--schedule", str(schedule), "--pidfile=", "--loglevel", "INFO")
    return [
        migration(root, home.root / "postgres" / "migrated", python("alembic", "upgrade", "head")(), servers_needed),
        Service(
            "api",
            # Directive streams never end by themselves, so the end of the API does not wait long for them.
            python(*uvicorn, "--timeout-graceful-shutdown", "2"),
            needs,
            why_not_ready=lambda: _healthy(port),
            poll_seconds=0.1,
        ),
        worker("fast"),
        worker("slow"),
        # A beat that was killed may leave half a schedule, which it cannot read; due times are cheap to work out again.
        Service("beat", python(*beat), needs, prepare=lambda: _remove(schedule), poll_seconds=0.1),
        Service("relay", python("workers.relay"), needs, poll_seconds=0.1),
    ]


def migration(root: Path, mark: Path, command: Command, needs: Sequence[str]) -> Service:
    """``alembic upgrade head``, left out when ``mark`` says that these very revisions have been applied before.

    It costs a second of every start otherwise. The mark lies beside the embedded data and is lost with them; there is none
    for a database of somebody else's.
    """
    wanted = _revisions(root)

    def chosen() -> Command:
        return Command(argv=["true"], env=command.env) if _read(mark) == wanted else command

    return Service("migrate", chosen, tuple(needs), finish=lambda: _remember(mark, wanted), is_task=True)


def why_not_ready(port: int) -> str | None:
    """Asks the API whether work flows: database, broker and a worker's round trip."""
    answer = probes.http_status(port, "/readyz")
    if isinstance(answer, str):
        return answer
    status, body = answer
    return None if status == 200 else f"/readyz answers {status}: {body}"  # noqa: PLR2004 - OK


def _healthy(port: int) -> str | None:
    answer = probes.http_status(port, "/healthz")
    if isinstance(answer, str):
        return answer
    return None if answer[0] == 200 else f"/healthz answers {answer[0]}"  # noqa: PLR2004 - OK


def _revisions(root: Path) -> str:
    digest = hashlib.sha256()
    for revision in sorted((root / "migrations" / "versions").glob("*.py")):
        digest.update(revision.name.encode() + revision.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _remember(mark: Path, wanted: str) -> None:
    if mark.parent.is_dir():
        write_private(mark, wanted)


def _remove(schedule: Path) -> None:
    for path in schedule.parent.glob(f"{schedule.name}*"):
        path.unlink(missing_ok=True)
