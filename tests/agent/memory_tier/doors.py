"""Nodes of a test, each with a real store in shared memory, a real client of the others and a real door on an address of its own."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import xxhash

from agent.memory_tier.announcing import Pauses
from agent.memory_tier.arriving import Arrivals
from agent.memory_tier.authority import Authority
from agent.memory_tier.budget import MIB, Budget
from agent.memory_tier.door import Behind, Door, Limits
from agent.memory_tier.inventories import Patience
from agent.memory_tier.locating import Locating
from agent.memory_tier.metrics import Counts
from agent.memory_tier.namespaces import Namespaces
from agent.memory_tier.objects import Objects
from agent.memory_tier.peers import Peers
from agent.memory_tier.relaying import Relay
from agent.memory_tier.store import Sealing, Store
from everstep.shards import Holder, Seal, ShardKind
from everstep.tiers import NamespacePlan, TierPeer, TierPlan
from tests.patience import PATIENCE

SECRET = "secret-between-nodes"
TOKEN = "token-of-the-job"
PORT = 9200
_NUMBERS = itertools.count()
JOB = {"Authorization": f"Bearer {TOKEN}"}
PEER = {"Authorization": f"Bearer {SECRET}"}
METADATA = b"\x80\x05 whatever a pickle holds"
ZIP = b"PK\x03\x04"


def address() -> str:
    """One that no other test of this machine listens on."""
    number, pid = next(_NUMBERS), os.getpid()
    return f"127.{100 + pid % 100}.{pid // 100 % 250}.{number % 250 + 1}"


class Node:
    """``kill`` ends its door as SIGKILL would end the process: nobody is told."""

    def __init__(
        self,
        name: str,
        shm: Path,
        *,
        url: str | None = None,
        allocated: int = 256 * MIB,
        zone: str | None = None,
        answer_s: float = 15.0,
        few: int = 16,
        echo_s: float = 0.3,
        **behind,
    ) -> None:
        self.name, self.address, self.zone = name, address(), zone
        self.store = Store(shm / name, node=name, budget=Budget(allocated, available=lambda: 1 << 40, reserve=0), now=time.time)
        self.store.adopt()
        self.peers = Peers(port=PORT)
        self.objects = Objects(url, {})
        self.authority = Authority(self.address)
        self.locating = Locating(
            here=Holder(name, self.address, PORT),
            store=self.store,
            peers=self.peers,
            objects=self.objects,
            is_open=self.authority.is_open,
            clock=time.monotonic,
            patience=Patience(fresh_s=0.0, cached_s=0.0, answer_s=answer_s, quick_s=0.3, away_s=1.0, few=few, per_peer_s=60.0),
            pauses=Pauses(first_s=0.01, longest_s=0.1, echo_s=echo_s),
        )
        self.counts = Counts()
        self.arrivals = Arrivals(self.store)
        self.behind = Behind(
            node=name,
            store=self.store,
            namespaces=Namespaces(shm / f"{name}-names"),
            authority=self.authority,
            locating=self.locating,
            relay=Relay(locating=self.locating, peers=self.peers, objects=self.objects, clock=time.monotonic),
            arrivals=self.arrivals,
            counts=self.counts,
            **{"now": time.time, **behind},
        )
        self.door = Door(
            self.behind, address=self.address, port=PORT, clock=time.monotonic, limits=Limits(stall_s=15.0, linger_s=0.3)
        )
        self._clients: list[HTTPConnection] = []

    def start(self) -> None:
        self.locating.start()
        self.door.start()

    def kill(self) -> None:
        self.door.stop()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.door.stop()
        self.behind.relay.close()
        self.locating.close()
        self.peers.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[HTTPResponse, bytes]:
        """On a connection that is kept, as a client's session is."""
        if not self._clients:
            self._clients.append(HTTPConnection(self.address, PORT, timeout=30))
        client = self._clients[0]
        client.request(method, path, body, headers or {})
        answer = client.getresponse()
        return answer, answer.read()

    def told(self, path: str, headers: dict[str, str] | None = None):
        answer, body = self.ask("GET", path, headers=headers)
        assert answer.status == 200, body
        return json.loads(body)

    def post(self, namespace: str, index: int, step: int, body: bytes, **headers: str) -> None:
        """As AWS's package does."""
        answer, told = self.ask("POST", shard(namespace, index, step), body, {"Shard-Meta": meta(body), **headers})
        assert answer.status == 201, told

    def save(self, namespace: str, world_size: int, step: int, *, index: int | None = None) -> dict[int, bytes]:
        """A foreign client's whole save, or one shard of it; the bodies by index."""
        bodies = {one: ZIP + os.urandom(3000 + one) for one in range(world_size)} | {world_size: METADATA + os.urandom(20)}
        chosen = bodies if index is None else {index: bodies[index]}
        for each, body in chosen.items():
            self.post(namespace, each, step, body)
        return chosen

    def seal(
        self, namespace: str, index: int, step: int, body: bytes, *, save: str = "s1", kind: ShardKind = ShardKind.DATA
    ) -> Seal:
        """As the hand-over does."""
        segment = self.store.take(namespace, index, step, len(body))
        segment.body[: len(body)] = body
        return self.store.seal(segment, Sealing(namespace, index, step, kind, len(body), save=save))


@contextlib.contextmanager
def nodes(
    shm: Path, *names: str, url: str | None = None, plan: TierPlan | None = None, zones: dict[str, str] | None = None, **more
) -> Iterator[list[Node]]:
    made = [Node(name, shm, url=url, zone=(zones or {}).get(name), **more) for name in names]
    try:
        tell(made, plan)
        for node in made:
            node.start()
        yield made
    finally:
        for node in made:
            node.close()


def tell(made: list[Node], plan: TierPlan | None = None, *, present: list[Node] | None = None) -> None:
    """Everybody's plan, with the others as peers."""
    for node in made:
        peers = tuple(TierPeer(one.name, one.address, one.zone) for one in present or made if one is not node)
        whole = plan or TierPlan(1, allocation_percent=20, secret=SECRET, namespaces=(planned("job"),))
        told = TierPlan(**{**vars(whole), "peers": peers, "zone": node.zone})
        node.authority.know(told)
        node.peers.know(told)
        node.locating.know(told)


def until(claim: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What ``claim`` returns once that is true of it: other threads decide."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := claim()):
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(0.005)
    return found


def planned(name: str, token: str = TOKEN) -> NamespacePlan:
    return NamespacePlan(name, f"id-of-{name}", token)


def shard(namespace: str, index: int, step: int) -> str:
    return f"/v1/cp/checkpoints/{namespace}/{index}/{step}"


def digest(body: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(body)


def meta(body: bytes) -> str:
    """In spaces and order unlike ours: it is to come back unchanged."""
    told = base64.b64encode(bytes.fromhex(digest(body))).decode()
    return f'{{"algorithm":  "xxh3_128", "checksum": "{told}", "more": [1]}}'


def own_address() -> str | None:
    """An address of this machine that is not loopback; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found = probe.getsockname()[0]
    return None if found.startswith("127.") else found
