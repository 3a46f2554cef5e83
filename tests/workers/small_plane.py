"""A control plane in one thread: real rows in a real database, the real driver, a simulated provider, and a clock that is told the time.

Agents are played through ``models``' own ``report_*``: what the agents' door would write.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from obstore.store import MemoryStore
from sqlalchemy.orm import Session

from everstep.protocol import Assignment
from models.checkpoint.table import CheckpointExport, CheckpointStep
from models.cluster import queries as clusters
from models.cluster.changes import request_deletion
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.condition.table import RepairHold
from models.directive import queries as directives
from models.directive.changes import report_delivered
from models.errors import NotFound
from models.health import queries as health
from models.health.changes import report_findings
from models.health.table import HealthCheck
from models.job import queries as jobs
from models.job.reports import Reform, report_broken, report_finished, report_process, report_reformed
from models.job.states import JobState, ProcessState
from models.job.table import Job
from models.lease import due
from models.node import queries as nodes
from models.node.beats import Heartbeat, report_beats
from models.node.changes import Arrival, report_lifecycle, report_registered, report_stream
from models.node.states import RESTARTING, NodeState
from models.node.table import Host, Node
from models.pulse import AGENTS, report_pulse
from models.session import Sessions, unit_of_work
from models.software.table import SoftwareUpdate
from models.spot.table import Notice
from models.volume.table import Attachment
from tests import rows
from tests.postgres import Ear
from workers.driver import Driver
from workers.exports import Exports
from workers.objects import Objects
from workers.providers.simulated import SimulatedProvider
from workers.reconcilers.checkpoint import CheckpointReconciler
from workers.reconcilers.cluster import ClusterReconciler
from workers.reconcilers.condition import HoldReconciler
from workers.reconcilers.export import ExportReconciler
from workers.reconcilers.health import HealthReconciler
from workers.reconcilers.host import HostReconciler
from workers.reconcilers.job import JobReconciler
from workers.reconcilers.node import NodeReconciler
from workers.reconcilers.software import SoftwareReconciler
from workers.reconcilers.spot import SpotReconciler
from workers.reconcilers.volume import AttachmentReconciler
from workers.sweep import ripe_kinds

TABLES = {
    "cluster": Cluster,
    "node": Node,
    "host": Host,
    "job": Job,
    "software": SoftwareUpdate,
    "health": HealthCheck,
    "spot": Notice,
    "hold": RepairHold,
    "attachment": Attachment,
    "checkpoint": CheckpointStep,
    "export": CheckpointExport,
}

_TICK_S = 0.5
_IDLE_S = 1.5
"""How far time moves when nothing was due: no agent is missed after so short a silence."""


@dataclass
class TestClock:
    __test__ = False
    at: datetime = rows.NOW

    def now(self) -> datetime:
        return self.at


@dataclass
class SmallPlane:
    """``dead`` nodes' agents neither beat nor obey; ``lifecycle_exit`` is what lifecycle scripts exit with, ``bad_images`` what on some images.

    ``ill`` is what health checks of some instances find. No program can be started for exports in a home that is no folder.
    """

    sessions: Sessions
    ear: Ear
    provider: SimulatedProvider = field(default_factory=SimulatedProvider)
    clock: TestClock = field(default_factory=TestClock)
    dead: set[str] = field(default_factory=set)
    lifecycle_exit: int = 0
    ill: dict[str, str] = field(default_factory=dict)
    bad_images: dict[str | None, int] = field(default_factory=dict)
    objects: Objects = field(default_factory=lambda: Objects("memory:///checkpoints", MemoryStore))
    exports: Exports = field(default_factory=lambda: Exports(Path("/dev/null"), {}))
    object_store_url: str = "memory:///"

    def __post_init__(self) -> None:
        self.driver = Driver(
            self.sessions,
            self.clock,
            "test",
            {
                "cluster": ClusterReconciler(),
                "node": NodeReconciler(),
                "host": HostReconciler(self.provider, lambda node_id: f"boot-{node_id}"),
                "job": JobReconciler(),
                "software": SoftwareReconciler(),
                "health": HealthReconciler(),
                "spot": SpotReconciler(),
                "hold": HoldReconciler(),
                "attachment": AttachmentReconciler(self.provider),
                "checkpoint": CheckpointReconciler(self.objects),
                "export": ExportReconciler(self.exports, self.object_store_url),
            },
        )

    # ------------------------------------------------------------------ time and work

    def work(self) -> int:
        """Reconciles whatever is due now, until nothing is; agents do nothing meanwhile."""
        done = 0
        for _ in range(200):
            heard = [tuple(payload.split(":")) for payload in self.ear.heard(within_s=0, at_least=0)]
            ripe = list(dict.fromkeys([*heard, *((kind, row_id) for kind in ripe_kinds(self) for row_id in self._due(kind))]))
            for kind, row_id in ripe:
                self.reconcile(kind, row_id)
            done += len(ripe)
            if not ripe:
                return done
        raise AssertionError("the plane does not come to rest")

    def reconcile(self, kind: str, row_id: str) -> None:
        self.driver.reconcile(kind, row_id)

    def listen(self) -> None:
        """The agents' door says that it is open."""
        with unit_of_work(self.sessions) as session:
            report_pulse(session, AGENTS, now=self.clock.at)

    def look_at_nodes(self) -> None:
        """Every node is looked at, as the sweep has it for those that are silent."""
        with unit_of_work(self.sessions) as session:
            silent = nodes.silent(session, before=self.clock.at, limit=1000)
        for node_id in silent:
            self.reconcile("node", node_id)
        self.work()

    def run(self, seconds: float, *, every: float = _TICK_S) -> None:
        """Time passes; plane and agents work. Where nothing is to be done it passes faster, as far as agents may be silent."""
        end = self.clock.at + timedelta(seconds=seconds)
        while self.clock.at < end:
            self._tick(end, every)
        self.work()

    def run_until(self, claim, seconds: float = 120.0) -> None:
        end = self.clock.at + timedelta(seconds=seconds)
        while self.clock.at < end:
            if claim():
                return
            self._tick(end, _TICK_S)
            self.work()
        raise AssertionError(f"not within {seconds} s: {self.states()}")

    def _tick(self, end: datetime, every: float) -> None:
        is_idle = not self.work()
        self.agents()
        self.clock.at = min(end, self.clock.at + timedelta(seconds=max(every, _IDLE_S) if is_idle else every))

    def _due(self, kind: str) -> list[str]:
        with unit_of_work(self.sessions) as session:
            return due(session, TABLES[kind], now=self.clock.at, again_at=self.clock.at + timedelta(seconds=5), limit=1000)

    # ------------------------------------------------------------------ agents

    def agents(self) -> None:
        """Those of hosts that no node owns, left by a launch whose answer was lost, are turned away at the door."""
        with unit_of_work(self.sessions) as session:
            for host in self.provider.hosts():
                if host.is_alive and host.instance_id not in self.dead:
                    with suppress(NotFound):
                        self._agent(session, nodes.by_instance(session, host.instance_id, lock=True), host.start)

    def _agent(self, session: Session, node: Node, start: int) -> None:
        now = self.clock.at
        if node.state is NodeState.BOOTING or (node.state in RESTARTING and start == node.starts):
            boot = f"boot-{node.id}-{start}"
            arrival = Arrival(boot=boot, address=str(node.address), rendezvous_port=29500, facts={}, start=start)
            report_registered(session, node, arrival, node_token=f"token-{node.id}", now=now)
            report_stream(session, node, is_open=True, now=now)
            report_lifecycle(
                session, node, exit_code=self.bad_images.get(node.image, self.lifecycle_exit), tail="the end of its log", now=now
            )
        elif node.boot:
            report_beats(session, [Heartbeat(node.id, node.boot, node.beat_sequence + 1, now)])
            self._obey(session, node)
            for check in health.asked_of_node(session, node.id):
                says = self.ill.get(str(node.instance_id))
                finding = {"kind": check.kinds[0], "verdict": "failed" if says else "passed", "says": says or "all is well"}
                report_findings(session, node, check, [finding], now=now)

    def _obey(self, session: Session, node: Node) -> None:
        now = self.clock.at
        told = directives.current(session, node.id)
        report_delivered(session, [directive.id for directive in told], now=now)
        for directive in told:
            assignment = Assignment.from_wire(directive.assignment)
            listed = {process.id for process in assignment.processes}
            for process in jobs.on_node(session, node.id):
                if process.job_id == assignment.job:
                    self._play(session, process, assignment, is_listed=process.id in listed)

    def _play(self, session: Session, process, assignment: Assignment, *, is_listed: bool) -> None:
        now = self.clock.at
        if not is_listed:
            report_process(session, process.id, ProcessState.EXITED, exit_code=0, now=now)
        elif process.state in (ProcessState.WANTED, ProcessState.STARTED):
            report_process(session, process.id, ProcessState.READY, pid=1, now=now)
        generation = assignment.generation
        if is_listed and generation and generation.rank_of(process.id) is not None and process.reformed < generation.number:
            rank = generation.rank_of(process.id)
            reform = Reform(generation.number, rank, step=0, source="initial", bytes_moved=0, phases={})
            report_reformed(session, process.id, reform, now=now)

    # ------------------------------------------------------------------ intents and facts

    def cluster(self, count: int = 4, **changes) -> str:
        with unit_of_work(self.sessions) as session:
            return rows.cluster(session, groups=(rows.group_spec(count=count),), **changes).id

    def serving(self, count: int = 4, **changes) -> str:
        cluster_id = self.cluster(count, **changes)
        self.run_until(lambda: self.states()["cluster"] == ["in_service"] and self.states()["node"] == ["ready"] * count)
        return cluster_id

    def delete_cluster(self, cluster_id: str) -> None:
        with unit_of_work(self.sessions) as session:
            cluster = session.get_one(Cluster, cluster_id)
            request_deletion(session, clusters.find(session, cluster.name, lock=True), now=self.clock.at)

    def job(self, cluster_id: str, name: str = "j1", **changes) -> str:
        with unit_of_work(self.sessions) as session:
            wish = {"replicas": 3, "spares": 1} | changes
            return rows.job(session, session.get_one(Cluster, cluster_id), name, **wish).id

    def training(self, cluster_id: str, name: str = "j1", **changes) -> str:
        job_id = self.job(cluster_id, name, **changes)
        self.run_until(lambda: self.job_state(job_id) is JobState.TRAINING)
        return job_id

    def die(self, instance_id: str) -> None:
        """Power off: the provider sees it, and the node's connections are reset."""
        self.dead.add(instance_id)
        with unit_of_work(self.sessions) as session:
            node = nodes.by_instance(session, instance_id, lock=True)
            self.provider.kill(node.id)
            report_stream(session, node, is_open=False, now=self.clock.at)

    def silence(self, instance_id: str) -> None:
        """The agent is gone, or cut off; the host runs on, as far as the provider can say."""
        self.dead.add(instance_id)
        with unit_of_work(self.sessions) as session:
            report_stream(session, nodes.by_instance(session, instance_id, lock=True), is_open=False, now=self.clock.at)

    def speak_again(self, instance_id: str) -> None:
        """An agent whose node has been given up meanwhile is told so, and says nothing more."""
        self.dead.discard(instance_id)
        with unit_of_work(self.sessions) as session:
            for node in session.query(Node).filter(Node.instance_id == instance_id, Node.state != NodeState.GONE).with_for_update():
                report_stream(session, node, is_open=True, now=self.clock.at)

    def exit(self, process_id: str, **facts) -> None:
        with unit_of_work(self.sessions) as session:
            report_process(session, process_id, ProcessState.EXITED, now=self.clock.at, **facts)

    def complain(self, process_id: str) -> None:
        with unit_of_work(self.sessions) as session:
            process = next(one for one in self.processes(self.job_of(session, process_id)) if one.id == process_id)
            generation = jobs.get(session, process.job_id).generation
            report_broken(session, process_id, generation, message="Connection reset by peer", now=self.clock.at)

    def finish(self, job_id: str) -> None:
        with unit_of_work(self.sessions) as session:
            job = jobs.get(session, job_id)
            for process_id in jobs.generations(session, job_id)[-1].members:
                report_finished(session, process_id, job.generation, step=10, digest="d", now=self.clock.at)

    # ------------------------------------------------------------------ what is so

    def job_of(self, session: Session, process_id: str) -> str:
        return next(row.job_id for row in session.query(jobs.JobProcess).filter_by(id=process_id))

    def states(self) -> dict[str, list[str]]:
        with unit_of_work(self.sessions) as session:
            return {
                "cluster": [cluster.state.value for cluster in session.query(Cluster)],
                "group": [
                    group.state.value for cluster in session.query(Cluster) for group in clusters.groups(session, cluster.id)
                ],
                "node": [
                    node.state.value for node in session.query(Node).order_by(Node.created_at) if node.state != NodeState.GONE
                ],
                "job": [f"{job.state.value}: {job.why}" for job in session.query(Job)],
            }

    def cluster_state(self, cluster_id: str) -> ClusterState:
        with unit_of_work(self.sessions) as session:
            return session.get_one(Cluster, cluster_id).state

    def job_state(self, job_id: str) -> JobState:
        return self.job_row(job_id).state

    def job_row(self, job_id: str) -> Job:
        with unit_of_work(self.sessions) as session:
            return jobs.get(session, job_id)

    def processes(self, job_id: str) -> list:
        with unit_of_work(self.sessions) as session:
            return jobs.processes(session, job_id)

    def members(self, job_id: str) -> list:
        with unit_of_work(self.sessions) as session:
            by_id = {process.id: process for process in jobs.processes(session, job_id)}
            return [by_id[process] for process in jobs.generations(session, job_id)[-1].members]

    def generations(self, job_id: str) -> list:
        with unit_of_work(self.sessions) as session:
            return jobs.generations(session, job_id)

    def nodes(self, cluster_id: str) -> list[Node]:
        with unit_of_work(self.sessions) as session:
            return nodes.of_cluster(session, cluster_id)

    def node(self, node_id: str) -> Node:
        with unit_of_work(self.sessions) as session:
            return nodes.get(session, node_id)

    def told(self, job_id: str) -> dict[str, Assignment]:
        with unit_of_work(self.sessions) as session:
            return {one.node_id: Assignment.from_wire(one.assignment) for one in directives.of_job(session, job_id)}
