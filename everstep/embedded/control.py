"""Starting, finding and ending a stack: what the commands ``up``, ``down``, ``status`` and ``env`` do."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.embedded import credentials, leftovers, logs, ports, procfs, stack, state
from everstep.embedded.errors import StackError
from everstep.embedded.home import Home
from everstep.embedded.service import Service
from everstep.embedded.settings import StackSettings, checkout_root
from everstep.embedded.state import Phase, ServiceState, StackState
from everstep.embedded.supervisor import Supervisor, Tell

_ATTACH_SECONDS = 90.0
_STOP_SECONDS = 45.0
_POLL_SECONDS = 0.05

ServicesOf = Callable[[StackState], tuple[list[Service], Callable[[], str | None]]]
"""The services of a stack with these ports, and the question whether the whole is ready."""


OnReady = Callable[[StackState], None]


class AlreadyRunningError(StackError):
    """Another supervisor has this home."""


@dataclass(frozen=True)
class Ended:
    """What ``down`` found and ended."""

    was_running: bool
    nodes: int


def run_here(home: Home, port: int | None, settings: StackSettings, tell: Tell, on_ready: OnReady) -> None:
    """Is the supervisor, until SIGINT or SIGTERM. ``port`` None: that of the last start; 0: any free one.

    Raises:
        AlreadyRunningError: another process has this home.
        StackError: the stack did not start; the message says why.
    """
    run_services(home, port, lambda found: _services(home, found, settings), tell, on_ready)


def run_services(home: Home, port: int | None, services_of: ServicesOf, tell: Tell, on_ready: OnReady) -> None:
    """As ``run_here``, for any services."""
    home.create()
    lock = home.lock()
    if lock is None:
        message = f"another `everstep up` has {home.root}; `everstep status` tells about it, `everstep down` ends it"
        raise AlreadyRunningError(message)
    try:
        before = state.read(home)
        leftovers.end_services(home, before)
        now = StackState(
            port=ports.of_the_api(port, before.port if before else None),
            database_port=ports.kept_or_free(before.database_port if before else None),
            broker_port=ports.kept_or_free(before.broker_port if before else None),
            began_at=time.time(),
        )
        own = procfs.key_of(os.getpid())
        now.supervisor_pid, now.supervisor_started = os.getpid(), own.started if own else 0
        services, gate = services_of(now)
        asyncio.run(_supervise(Supervisor(home, now, services, gate=gate, tell=tell), lambda: on_ready(now)))
    finally:
        os.close(lock)


def start_detached(home: Home, port: int | None, environ: Mapping[str, str], tell: Tell) -> StackState:
    """Starts a supervisor that outlives us and waits until the stack is ready; attaches when one runs already.

    Interrupted, it ends what it has started: nobody would know of a supervisor that goes on behind their back.

    Raises:
        StackError: it did not become ready; the message says why.
    """
    running = state.read(home)
    if running and running.is_supervised:
        return attach(home, port)
    home.create()
    reading, writing = os.pipe()
    log = home.logs / "supervisor.log"
    logs.open_log(home.logs, "supervisor").close()
    supervisor = os.posix_spawn(
        sys.executable,
        # -P: files where the user happens to stand (a `random.py` beside a training script) are not ours to import.
        [sys.executable, "-P", "-m", "everstep.embedded", str(home.root), "" if port is None else str(port), "3"],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, writing, 3),
        ],
        setsid=True,
    )
    os.close(writing)
    try:
        with os.fdopen(reading, encoding="utf-8") as events:
            return _follow(home, port, events, tell)
    except KeyboardInterrupt:
        _end_supervisor(procfs.key_of(supervisor))
        raise


def _follow(home: Home, port: int | None, events: Iterable[str], tell: Tell) -> StackState:
    """What a new supervisor tells of its start, up to its end."""
    for line in events:
        event = json.loads(line)
        if event["service"] == "ready":
            return _known(home)
        if event["service"] == "occupied":
            return attach(home, port)
        if event["service"] == "failed":
            raise StackError(event["why"])
        tell(event["service"], ServiceState(Phase(event["phase"]), why=event.get("why")))
    log = home.logs / "supervisor.log"
    message = f"the supervisor ended before the stack was ready. The end of {log}:\n{logs.tail(log)}"
    raise StackError(message)


def attach(home: Home, port: int | None) -> StackState:
    """Waits until the stack that another process starts or runs is ready.

    Raises:
        StackError: it listens on another port than the one asked for, or does not become ready.
    """
    deadline = time.monotonic() + _ATTACH_SECONDS
    while time.monotonic() < deadline:
        found = state.read(home)
        if found and found.is_supervised and found.phase is Phase.READY:
            if port not in {None, 0, found.port}:
                message = (
                    f"the stack in {home.root} runs on port {found.port}; end it with `everstep down` to start it on port {port}"
                )
                raise StackError(message)
            return found
        time.sleep(_POLL_SECONDS)
    message = f"the stack in {home.root} is not ready; `everstep status` says why, `everstep down` ends it"
    raise StackError(message)


def shut_down(home: Home) -> Ended:
    """Ends the supervisor, whatever a dead one has left, and every local node. Nothing to end is fine too.

    Raises:
        StackError: something could not be ended; the message names it.
    """
    found = state.read(home)
    running = found is not None and found.is_supervised
    if found and running:
        _end_supervisor(found.supervisor)
    if not home.root.is_dir():
        return Ended(was_running=False, nodes=0)
    lock = home.lock()
    if lock is None:
        message = f"another `everstep up` is starting in {home.root}; try again when it is ready"
        raise StackError(message)
    try:
        found = state.read(home)
        ended = leftovers.end_services(home, found)
        nodes = leftovers.end_nodes(home)
        leftovers.give_memory_back(home)
        if found:
            found.phase = Phase.STOPPED
            found.services = {}
            state.write(home, found)
    finally:
        os.close(lock)
    return Ended(was_running=running or ended > 0, nodes=nodes)


def exports(home: Home) -> dict[str, str]:
    """What a client needs to know to reach the stack of this home: endpoints and keys, by the names that clients read.

    Raises:
        StackError: there has never been a stack in this home.
    """
    keys, found = credentials.load(home), state.read(home)
    if keys is None or found is None:
        message = f"there is no stack in {home.root}; start one with `everstep up`"
        raise StackError(message)
    return {
        "AWS_ENDPOINT_URL_SAGEMAKER": found.url,
        "AWS_ENDPOINT_URL_EVERSTEP": found.url,
        "AWS_ACCESS_KEY_ID": keys.access_key_id,
        "AWS_SECRET_ACCESS_KEY": keys.secret_access_key,
        "AWS_DEFAULT_REGION": found.region,
        "EVERSTEP_URL": found.url,
        "EVERSTEP_TOKEN": keys.token,
    }


def _end_supervisor(supervisor: procfs.ProcessKey | None) -> None:
    if supervisor is None:
        return
    procfs.send([supervisor], signal.SIGTERM)
    stubborn = procfs.await_end([supervisor], _STOP_SECONDS)
    procfs.send(stubborn, signal.SIGKILL)
    procfs.await_end(stubborn, _STOP_SECONDS)


async def _supervise(supervisor: Supervisor, on_ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    await supervisor.run(on_ready)


def _services(home: Home, now: StackState, settings: StackSettings) -> tuple[list[Service], Callable[[], str | None]]:
    root = checkout_root(Path(__file__).resolve().parents[1])
    if root is None:
        message = (
            "the control plane runs from its checkout or its image, and this is the installed library alone: "
            "clone the repository and run `make up` there"
        )
        raise StackError(message)
    keys = credentials.load_or_create(home)
    embedded = stack.servers(home, now, keys, settings)
    base = stack.server_services(embedded)
    env = stack.environment(home, now, keys, settings, embedded)
    now.database_url, now.broker_url, now.region = env["EVERSTEP_DATABASE_URL"], env["EVERSTEP_BROKER_URL"], settings.region
    plane = stack.control_plane(root, home, now.port, env, [service.name for service in base])
    return base + plane, lambda: stack.why_not_ready(now.port)


def _known(home: Home) -> StackState:
    found = state.read(home)
    if found is None:
        message = f"{home.state} is missing although the stack is ready; did somebody remove it?"
        raise StackError(message)
    return found
