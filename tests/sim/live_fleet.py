"""The real control plane over a simulated fleet, in real time: the API is a process, the workers are threads with the real reconcilers.

The agents come through the API's own door, the provider is asked at the fleet's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sqlalchemy import func, select

from models.access.secrets import boot_token
from models.clock import WallClock
from models.cluster.table import Cluster
from models.ids import InstanceId
from models.job.states import JobState
from models.job.table import Job
from models.node.changes import settle_launched
from models.node.states import NodeState
from models.node.table import Node
from models.session import connect, unit_of_work
from models.session import sessions as session_factory
from tests import rows
from tests.live import MASTER_KEY, ApiProcess
from tests.workers.fleet.running import Running, running
from workers import orphans, sweep
from workers.plane import LANES, Plane, build
from workers.providers.base import HostSpec
from workers.providers.simulated import SimulatedProvider
from workers.providers.simulated_fleet import FleetProvider
from workers.settings import FAST, SLOW, Settings

_THREADS = {FAST: 3, SLOW: 3}


class Workers:
    """Two lanes of threads, and a relay that hears and sweeps: what Celery does for the control plane, with fewer processes."""

    def __init__(self, plane: Plane, ear: Any) -> None:
        self._plane, self._ear = plane, ear
        self._lanes: dict[str, SimpleQueue[tuple[str, str] | None]] = {FAST: SimpleQueue(), SLOW: SimpleQueue()}
        self._asked: set[tuple[str, str]] = set()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(lane,)) for lane, count in _THREADS.items() for _ in range(count)
        ]
        self._threads.append(threading.Thread(target=self._relay))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for lane, count in _THREADS.items():
            for _ in range(count):
                self._lanes[lane].put(None)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _relay(self) -> None:
        while not self._is_over.is_set():
            for payload in self._ear.heard(within_s=0.1, at_least=1):
                self._ask(*payload.split(":"))
            for kind in {*sweep.ripe_kinds(self._plane), Node.KIND}:
                sweep.sweep(self._plane, kind, self._ask)

    def _ask(self, kind: str, row_id: str) -> None:
        if (kind, row_id) not in self._asked and kind in LANES:
            self._asked.add((kind, row_id))
            self._lanes[LANES[kind]].put((kind, row_id))

    def _work(self, lane: str) -> None:
        while (asked := self._lanes[lane].get()) is not None and not self._is_over.is_set():
            self._asked.discard(asked)
            self._plane.driver.reconcile(*asked)


class LiveFleet:
    """What tests ask of it. Times are real seconds."""

    def __init__(self, plane: Plane, fleet: Running) -> None:
        self.plane, self.fleet = plane, fleet
        self.sessions = plane.sessions

    def until(self, what: str, claim: Callable[[], Any], within_s: float = 60.0) -> Any:
        deadline = time.monotonic() + within_s
        while not (found := claim()):
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}; {self.states()}, {self.counts()}"
            time.sleep(0.05)
        return found

    def cluster(self, count: int, name: str = "c1", **changes: Any) -> str:
        spec = changes.pop("group", {})
        with unit_of_work(self.sessions) as session:
            groups = (replace(rows.group_spec(count=count), **spec),)
            return rows.cluster(session, name, groups=groups, is_continuous=True, **changes).id

    def serving(self, count: int, within_s: float = 60.0, **changes: Any) -> str:
        cluster_id = self.cluster(count, **changes)
        self.until(f"{count} nodes serve", lambda: self.states().get(NodeState.READY, 0) == count, within_s)
        return cluster_id

    def job(self, cluster_id: str, **changes: Any) -> str:
        with unit_of_work(self.sessions) as session:
            return rows.job(session, session.get_one(Cluster, cluster_id), **changes).id

    def job_row(self, job_id: str) -> Job:
        with unit_of_work(self.sessions) as session:
            return session.get_one(Job, job_id)

    def training(self, cluster_id: str, **changes: Any) -> str:
        job_id = self.job(cluster_id, **changes)
        self.until("the job trains", lambda: self.job_row(job_id).state is JobState.TRAINING and self.job_row(job_id).step > 0)
        return job_id

    def states(self) -> dict[str, int]:
        """How many nodes are in each state, those that are gone left out."""
        with unit_of_work(self.sessions) as session:
            counted = select(Node.state, func.count()).where(Node.state != NodeState.GONE).group_by(Node.state)
            return dict(session.execute(counted).all())

    def counts(self) -> dict[str, Any]:
        return self.fleet.provider.call("counts")

    def strike(self, blow: str, **how: float) -> int:
        return self.fleet.provider.call("strike", blow=blow, **how)

    def release_orphans(self) -> int:
        return orphans.release(self.plane)


@contextmanager
def live_fleet(api: ApiProcess, ear: Any, folder: Path, wire: dict[str, Any], **settings: Any) -> Iterator[LiveFleet]:
    """``settings`` are the workers'."""
    told = Settings(
        database_url=api.database_url,
        broker_url="redis://127.0.0.1:1/0",
        master_key=MASTER_KEY,
        object_store_url=(folder / "store").as_uri(),
        home=folder,
        api_url=api.url,
        provider="simulated",
        **settings,
    )
    engine = connect(api.database_url, pool_size=sum(_THREADS.values()) + 4)
    with running(wire, folder / "fleet", api.url) as fleet:
        plane = build(told, session_factory(engine), WallClock())
        workers = Workers(plane, ear)
        workers.start()
        try:
            yield LiveFleet(plane, fleet)
        finally:
            workers.stop()
            engine.dispose()


def wished(sessions: Any, provider: FleetProvider, count: int) -> list[str]:
    """So many nodes whose hosts have just been launched, as workers would have left them; the rows are there before their agents come."""
    now, likeness = WallClock().now(), SimulatedProvider(capacity=count)
    specs = []
    with unit_of_work(sessions) as session:
        of = rows.cluster(session, groups=(rows.group_spec(count=count),))
        for _ in range(count):
            node = rows.node(session, of, state=NodeState.REQUESTED)
            specs.append(HostSpec(node.id, node.instance_type, 4, 8192, boot_token(MASTER_KEY, node.id)))
            host = likeness.launch(specs[-1])
            settle_launched(session, node, instance_id=InstanceId(host.instance_id), address=host.address, now=now)
    for spec in specs:
        provider.launch(spec)
    return [spec.claim for spec in specs]
