"""Memory tiers for tests: real processes (``python -P -m agent.memory_tier``) on loopback addresses of their own, with one plan and one object store.

with memory_tiers(tmp_path, 2) as tiers:
    tiers[0].environment("ns")   # what a training process on that node would be told
    tiers[1].kill()              # SIGKILL; its shards stay. ``start()`` brings it back, ``lose()`` takes its memory as well
    tiers.tell(allocation_percent=20)
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.handover import Conversation
from everstep.protocol import Fault, report_from_wire
from everstep.shards import PORT
from everstep.tiers import NamespacePlan, TierPeer, TierPlan
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
TOKEN = "token-of-the-job"
PATIENCE_S = 30.0
_NUMBERS = itertools.count(1)


def planned(name: str = "ns", **members: Any) -> NamespacePlan:
    return NamespacePlan(**{"name": name, "job": f"job-{name}", "token": TOKEN, **members})


def until(claim: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """What ``claim`` returns once that is true of it. It looks, because another process decides."""
    deadline = time.monotonic() + patience_s * PATIENCE
    while not (found := claim()):
        assert time.monotonic() < deadline, f"not within {patience_s * PATIENCE:.0f} s: {what}"
        time.sleep(0.01)
    return found


_REAPER = """
import os, shutil, sys
def began(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except OSError:
        return None
known = {}
for line in sys.stdin:
    pid, folder = line.rstrip().split(" ", 1)
    known[int(pid), folder] = began(pid)
for (pid, folder), at in known.items():
    if at is not None and began(pid) == at:
        os.kill(pid, 9)
        shutil.rmtree(folder, ignore_errors=True)
"""


class Reaper:
    """Ends the tiers of a test run that is itself killed: a process of its own, which notices by the end of a pipe."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process = subprocess.Popen([sys.executable, "-c", _REAPER], stdin=subprocess.PIPE, start_new_session=True)
        atexit.register(self._end)

    def watch(self, pid: int, folder: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid} {folder}\n".encode())
        self._process.stdin.flush()

    def _end(self) -> None:
        if self.owner == os.getpid():
            self._process.communicate()


_REAPERS: list[Reaper] = []


def _reaper() -> Reaper:
    """This process's: one that was forked with a copy of another's has its own."""
    if not _REAPERS or _REAPERS[-1].owner != os.getpid():
        _REAPERS.append(Reaper())
    return _REAPERS[-1]


class Node:
    """A tier's process, and this test as its agent: ``reports`` is what it has told, in order."""

    def __init__(
        self, name: str, address: str, home: Path, *, memory_mib: int, object_store_url: str, more: Mapping[str, str]
    ) -> None:
        self.name = name
        self.address = address
        self.url = f"http://{address}:{PORT}"
        self.home = home
        self.folder = Path(f"/dev/shm/everstep-test-{os.getpid()}-{name}-{home.parent.name}")
        self.socket = home / "tier.sock"
        self.log = home / "tier.log"
        self.reports: list[Any] = []
        self._control = home / "control.sock"
        self._object_store_url = object_store_url
        self._process: subprocess.Popen[bytes] | None = None
        self._agent: socket.socket | None = None
        self._plan: TierPlan | None = None
        self._variables = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("EVERSTEP_", "PYTHON"))},
            "PYTHONPATH": str(ROOT),
            "EVERSTEP_NODE_ID": name,
            "EVERSTEP_NODE_ADDRESS": address,
            "EVERSTEP_NODE_MEMORY_MIB": str(memory_mib),
            "EVERSTEP_AGENT_STATE": str(home),
            "EVERSTEP_OBJECT_STORE_URL": object_store_url,
            "EVERSTEP_MEMORY_TIER_DIR": str(self.folder),
            "EVERSTEP_CHECKPOINT_SOCKET": str(self.socket),
            "EVERSTEP_MEMORY_TIER_CONTROL": str(self._control),
            **more,
        }

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, waits: bool = True) -> None:
        """With the plan that it was told last; returns when its hand-over and its door can be reached, if it is to be on."""
        self.home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent.memory_tier"], env=self._variables, cwd=self.home, stdout=log, stderr=log
            )
        _reaper().watch(self._process.pid, self.folder)
        self._attach()
        if self._plan is not None:
            self.say({"plan": self._plan.to_wire()})
        if waits and self._plan is not None and self._plan.allocation_percent is not None:
            until(self._serves, f"the tier of {self.name} serves; its log: {self.log.read_text()[-2000:]}")

    def tell(self, plan: TierPlan) -> None:
        self._plan = plan
        if self._agent is not None:
            self.say({"plan": plan.to_wire()})

    def say(self, message: Mapping[str, Any]) -> None:
        assert self._agent is not None
        self._agent.sendall(json.dumps(message).encode() + b"\n")

    def strike(self, **fault: Any) -> Any:
        """Injects a fault; its report."""
        injected = Fault(**{"id": f"fault-{next(_NUMBERS)}", **fault})
        self.say({"fault": injected.to_wire()})
        return until(
            lambda: next((one for one in self.reports if getattr(one, "fault", None) == injected.id), None), "a fault report"
        )

    def kill(self) -> None:
        """SIGKILL. What it holds in memory stays."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number not in {signal.SIGSTOP, signal.SIGCONT}:
            self._process.wait(PATIENCE_S)
            self._detach()

    def lose(self) -> None:
        """As the loss of a node: process and memory."""
        if self.is_alive:
            self.kill()
        self._clear()

    def stop(self) -> None:
        if self.is_alive:
            self.signal(signal.SIGCONT)
            try:
                self.signal(signal.SIGTERM)
            except subprocess.TimeoutExpired:
                self.kill()  # it must not outlive the test
                raise
            finally:
                self._clear()
        self._detach()
        self._clear()

    def environment(self, namespace: str = "ns", *, token: str = TOKEN) -> dict[str, str]:
        """What the agent would tell a training process of this node about its checkpoints."""
        return {
            "EVERSTEP_CHECKPOINT_URL": self.url,
            "EVERSTEP_CHECKPOINT_SOCKET": str(self.socket),
            "EVERSTEP_CHECKPOINT_TOKEN": token,
            "EVERSTEP_NAMESPACE": namespace,
            "EVERSTEP_DURABLE_URL": f"{self._object_store_url}/checkpoints",
            "EVERSTEP_JOB_ID": f"job-{namespace}",
            "EVERSTEP_NODE_ID": self.name,
            "EVERSTEP_NODE_ADDRESS": self.address,
        }

    @contextlib.contextmanager
    def talk(self, namespace: str = "ns", *, token: str = TOKEN) -> Iterator[Callable[..., dict[str, Any]]]:
        """A conversation of the hand-over: ``ask("open", index=0, …)``. Descriptors that come are under "descriptors", and closed at the end."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(PATIENCE_S)
        connection.connect(str(self.socket))
        conversation = Conversation(connection)
        lent: list[int] = []

        def ask(ask: str, **members: Any) -> dict[str, Any]:
            conversation.say({"ask": ask, **members})
            heard = conversation.hear()
            assert heard is not None, "the tier hung up"
            lent.extend(heard[1])
            return heard[0] | ({"descriptors": heard[1]} if heard[1] else {})

        try:
            ask("hello", namespace=namespace, token=token, protocol=1)
            yield ask
        finally:
            conversation.close()
            for descriptor in lent:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _serves(self) -> bool:
        assert self.is_alive, self.log.read_text()[-4000:]
        for family, address in ((socket.AF_UNIX, str(self.socket)), (socket.AF_INET, (self.address, PORT))):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(address):
                    return False
        return True

    def _clear(self) -> None:
        if self.folder.is_mount():
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _attach(self) -> None:
        def connected() -> socket.socket | None:
            assert self.is_alive, self.log.read_text()[-4000:]
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if connection.connect_ex(str(self._control)):
                connection.close()
                return None
            return connection

        self._agent = until(connected, "the tier's control socket")
        threading.Thread(target=self._listen, args=(self._agent,), daemon=True).start()

    def _listen(self, agent: socket.socket) -> None:
        with contextlib.suppress(OSError), agent.makefile("rb") as stream:
            for line in stream:
                self.reports.append(report_from_wire(json.loads(line)["report"]))

    def _detach(self) -> None:
        if self._agent is not None:
            with contextlib.suppress(OSError):
                self._agent.shutdown(socket.SHUT_RDWR)
            self._agent.close()
            self._agent = None


class Tiers:
    """The tiers of a cluster, and its control plane in so far as it tells them a plan."""

    def __init__(self, nodes: Sequence[Node], object_store: Path, plan: TierPlan, zones: Mapping[str, str]) -> None:
        self.nodes = list(nodes)
        self.object_store = object_store
        self.plan = plan
        self.zones = zones

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def tell(self, *, present: Sequence[Node] | None = None, **changes: Any) -> None:
        """A new plan to everybody that is alive; ``present`` are the nodes that the control plane thinks are there."""
        self.plan = dataclasses.replace(self.plan, number=self.plan.number + 1, **changes)
        for node in self.nodes:
            node.tell(self._plan_of(node, self.nodes if present is None else present))

    def _plan_of(self, node: Node, present: Sequence[Node]) -> TierPlan:
        peers = tuple(TierPeer(other.name, other.address, self.zones.get(other.name)) for other in present if other is not node)
        return dataclasses.replace(self.plan, peers=peers, zone=self.zones.get(node.name))


@contextlib.contextmanager
def memory_tiers(
    tmp_path: Path,
    count: int = 1,
    *,
    memory_mib: int = 1024,
    allocation_percent: int | None = 25,
    namespaces: Sequence[NamespacePlan] = (),
    zones: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Tiers]:
    """``count`` tiers of 25 % of 1 GiB each. Without ``namespaces`` there is one, ``ns``, with two replicas where there are two nodes."""
    object_store = tmp_path / "objects"
    object_store.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="everstep-tiers-"))  # short: the name of a socket has at most 107 bytes
    number, pid = next(_NUMBERS), os.getpid()
    nodes = [
        Node(
            f"n{each}",
            f"127.{16 + pid % 200}.{pid // 200 % 250}.{number * 16 % 240 + each + 1}",
            home / f"n{each}",
            memory_mib=memory_mib,
            object_store_url=object_store.as_uri(),
            more=environment or {},
        )
        for each in range(count)
    ]
    plan = TierPlan(
        number=0,
        allocation_percent=allocation_percent,
        secret="secret-of-the-cluster",
        namespaces=tuple(namespaces) or (planned(replicas=min(2, count)),),
    )
    tiers = Tiers(nodes, object_store, plan, zones or {})
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, home, ignore_errors=True)
        for node in nodes:
            ends.callback(node.stop)
        tiers.tell()
        for node in nodes:
            node.start()
        yield tiers
