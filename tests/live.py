"""A real API process on a database of the test's own, and real agents against it."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from api.app import create_app
from api.settings import Settings
from everstep.embedded.children import free_port
from models.access.changes import request_token
from models.access.secrets import boot_token
from models.clock import WallClock
from models.cluster.table import Cluster
from models.ids import InstanceId, NodeId
from models.job.changes import settle_generation, settle_processes
from models.node import queries as nodes
from models.node.states import NodeState
from models.node.table import Node
from models.session import Sessions, unit_of_work
from tests import rows
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
MASTER_KEY = bytes(range(32))
TOKEN = "token-of-the-tests"


def wait_for(claim: Callable[[], Any], within_s: float = 10.0) -> Any:
    """Until the claim holds; returns what it returned."""
    deadline = time.monotonic() + within_s * PATIENCE
    while not (found := claim()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s * PATIENCE} s: {claim}")
        time.sleep(0.01)
    return found


@dataclass
class Api:
    """Where an API listens, and how to call it."""

    database_url: str
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: Any, token: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(f"{self.url}{path}", content=content, headers=headers, timeout=20.0, verify=False)

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", verify=False).status_code == 200
        except httpx.HTTPError:
            return False


@dataclass
class ThreadedApi(Api):
    """The real application under the real server, in a thread of the test process: up within tens of milliseconds."""

    server: uvicorn.Server | None = None
    thread: threading.Thread | None = None

    def start(self) -> None:
        settings = Settings(database_url=self.database_url, broker_url="redis://127.0.0.1:1/0", master_key=MASTER_KEY)
        config = uvicorn.Config(create_app(settings), port=self.port, access_log=False, log_level="warning")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        wait_for(lambda: self.server.started, 20.0)

    def stop(self) -> None:
        """As SIGTERM does, which only a process's main thread can hear."""
        if self.server is None or self.thread is None:
            return
        door = self.server.config.app.state.agents
        door.loop.call_soon_threadsafe(door.streams.shut_down)
        self.server.should_exit = True
        self.thread.join(10.0)
        assert not self.thread.is_alive()
        self.server = None


@dataclass
class ApiProcess(Api):
    """An API process that can be killed and started again on the same port."""

    log: Path = Path(os.devnull)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = os.environ | {
            "EVERSTEP_DATABASE_URL": self.database_url,
            "EVERSTEP_BROKER_URL": "redis://127.0.0.1:1/0",
            "EVERSTEP_MASTER_KEY": base64.b64encode(MASTER_KEY).decode(),
        }
        command = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--port", str(self.port), "--no-access-log"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        wait_for(self.answers, 30.0)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Returns how long it took to end."""
        began = time.monotonic()
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(10.0)
            self.process = None
        return time.monotonic() - began


@pytest.fixture
def api(database_url: str) -> Iterator[ThreadedApi]:
    api = ThreadedApi(database_url)
    api.start()
    yield api
    api.stop()


@pytest.fixture
def api_process(database_url: str, tmp_path: Path) -> Iterator[ApiProcess]:
    api = ApiProcess(database_url, log=tmp_path / "api.log")
    api.start()
    yield api
    api.stop(signal.SIGKILL)


@dataclass(frozen=True)
class Place:
    """A node row that waits for its agent, and the token with which the agent may come."""

    node_id: NodeId
    instance_id: str
    boot_token: str

    def registration(self, **changes: Any) -> dict[str, Any]:
        return {
            "instance_id": self.instance_id,
            "token": self.boot_token,
            "address": "127.77.0.1",
            "rendezvous_port": 4000,
            "boot": "boot-a",
            "version": "0",
            "vcpus": 2,
            "memory_mib": 2048,
            "processes": [],
        } | changes


@pytest.fixture
def place(sessions: Sessions) -> Place:
    """A node that has been launched a moment ago, of a name that no other test has: agents, faults and ``kill_all_of`` find processes by it."""
    with unit_of_work(sessions) as session:
        node = rows.node(session, rows.cluster(session), state=NodeState.BOOTING, now=WallClock().now())
        node.instance_id = InstanceId(f"i-{secrets.token_hex(9)[:17]}")
        return Place(node.id, str(node.instance_id), boot_token(MASTER_KEY, node.id))


@pytest.fixture
def bearer(sessions: Sessions) -> str:
    """A token of the REST door."""
    with unit_of_work(sessions) as session:
        request_token(session, TOKEN, account_id="123456789012", now=WallClock().now())
    return TOKEN


@pytest.fixture
def look(sessions: Sessions) -> Callable[[str], Node]:
    """The node's row as it is committed now."""

    def look(node_id: str) -> Node:
        with sessions() as session:
            return nodes.get(session, node_id)

    return look


@dataclass
class Host:
    """A host with an agent that can be killed and started again in the same state directory."""

    environment: dict[str, str]
    state: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.state.parent / "agent.log"

    def start(self) -> None:
        with self.log.open("ab") as output:
            command = [sys.executable, "-P", "-m", "agent"]
            self.process = subprocess.Popen(command, cwd=self.state.parent, env=self.environment, stdout=output, stderr=output)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(15.0)
        self.process = None
        return code


@contextmanager
def host(api_url: str, place: Place, folder: Path, **variables: str) -> Iterator[Host]:
    """A host of this place; at the end everything that runs on it is killed."""
    state = folder / "state"
    state.mkdir(parents=True)
    environment = os.environ | {
        "EVERSTEP_NODE_ID": place.instance_id,
        "EVERSTEP_AGENT_STATE": str(state),
        "EVERSTEP_API_URL": api_url,
        "EVERSTEP_BOOT_TOKEN": place.boot_token,
        "EVERSTEP_NODE_ADDRESS": "127.0.0.1",
        "EVERSTEP_NODE_VCPUS": "2",
        "EVERSTEP_ACCELERATORS": "cpu",
        "EVERSTEP_NODE_MEMORY_MIB": "2048",
        "PYTHONPATH": str(ROOT),
    }
    made = Host(environment | variables, state)
    try:
        yield made
    finally:
        made.stop(signal.SIGKILL)
        kill_all_of(place.instance_id)


def kill_all_of(instance_id: str) -> None:
    """Ends every process that carries this node's name, as the loss of a machine would."""
    mark = f"EVERSTEP_NODE_ID={instance_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


@pytest.fixture
def hosted(api: ThreadedApi, place: Place, tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        yield stack.enter_context(host(api.url, place, tmp_path / "host"))


@dataclass(frozen=True)
class Work:
    """A job with one wanted process on the place's node."""

    job_id: str
    process_id: str


@pytest.fixture
def work(sessions: Sessions, place: Place) -> Work:
    with unit_of_work(sessions) as session:
        node = nodes.get(session, place.node_id)
        job = rows.job(session, session.get_one(Cluster, node.cluster_id), replicas=1)
        process = settle_processes(session, job, [(node.id, 0)], now=WallClock().now())[0]
        settle_generation(session, job, [process], cause="test", evidence_at=None, now=WallClock().now())
        return Work(job.id, process.id)
