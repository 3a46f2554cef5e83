"""A small plane whose agents are those of a simulated fleet, in a time that is told: everything but the network between them is the real thing.

What the agents' door would do is done by its own use-cases, each in a transaction of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from api.operations import agents, reports
from api.operations.reports import Sequenced
from api.operations.tiers import Commons
from api.settings import Settings
from models.access.secrets import boot_token
from models.node.beats import Heartbeat
from models.session import unit_of_work
from tests import rows
from tests.workers.small_plane import SmallPlane
from workers.fleet.fleet import Agents
from workers.fleet.node import Node
from workers.fleet.scenario import Scenario
from workers.fleet.timeline import Timeline
from workers.reconcilers.host import HostReconciler

_SETTINGS = Settings(database_url="", broker_url="", master_key=rows.MASTER_KEY)


@dataclass
class Talk:
    """What the door knows of one start of an agent: its stream, and which lines it has carried."""

    node_id: str
    stream: str | None = None
    sent: frozenset[int] = frozenset()


@dataclass
class FleetPlane(SmallPlane):
    """``scenario`` is read from the wire as a file's would be."""

    wire: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        began = self.clock.at
        self.timeline = Timeline(lambda: (self.clock.at - began).total_seconds(), began_at=began.timestamp())
        self.fleet = Agents(Scenario.read(self.wire), self.timeline)
        self.fleet.went = self._cut_off
        self.fleet.healed = self._begin_anew
        self.provider = self.cloud = self.fleet.cloud
        self.talks: dict[Node, Talk] = {}
        self.commons = Commons(rows.MASTER_KEY)
        super().__post_init__()
        host = HostReconciler(self.cloud, partial(boot_token, rows.MASTER_KEY))
        self.driver = type(self.driver)(self.sessions, self.clock, "test", {**self.driver.reconcilers, "host": host})

    # ------------------------------------------------------------------ time

    def pass_time(self, seconds: float, *, calm: float = 30.0, restless: float = 1.0) -> None:
        """Time passes in strides: while all is well as far as the fleet's next moment, short ones while something is being decided."""
        end = self.clock.at + timedelta(seconds=seconds)
        while self.clock.at < end:
            due = calm if self.timeline.next_at is None else self.timeline.next_at - self.timeline.now
            stride = restless if self._is_restless() else max(restless, min(calm, due))
            self.run(stride, every=stride)

    def watch(self, seconds: float, *, every: float = 3.0) -> None:
        """Time passes, the door listens, and silent nodes are looked at as the sweep has it."""
        end = self.clock.at + timedelta(seconds=seconds)
        while self.clock.at < end:
            self.listen()
            self.run(every, every=every)
            self.look_at_nodes()

    def _is_restless(self) -> bool:
        states = self.states()
        is_job_well = all(job.startswith(("training", "succeeded", "failed", "stopped")) for job in states["job"])
        return not is_job_well or not set(states["node"]) <= {"ready", "booting", "checking"}

    # ------------------------------------------------------------------ agents

    def agents(self) -> None:
        self.timeline.advance()
        heard = [node for node in self.fleet.nodes.values() if not node.machine.is_cut]
        for node in heard:
            if node not in self.talks:
                self._register(node)
        with unit_of_work(self.sessions) as session:
            untold = set(agents.undelivered(session, [talk.node_id for talk in self.talks.values()]))
            agents.report_beats(session, [self._beat(node) for node in heard])
        for node in heard:
            talk = self.talks[node]
            if talk.stream is None or talk.node_id in untold:
                self._listen(node, talk)
        self.timeline.advance()
        for node in heard:
            self._tell(node)

    def _register(self, node: Node) -> None:
        with unit_of_work(self.sessions) as session:
            told = node.registration()
            arrived = agents.register(session, told, settings=_SETTINGS, beat_interval_s=1.0, now=self.clock.at)
        node.welcomed(arrived.welcome)
        self.talks[node] = Talk(arrived.node_id)

    def _beat(self, node: Node) -> Heartbeat:
        node.beats += 1
        return Heartbeat(self.talks[node].node_id, node.boot, node.beats, self.clock.at)

    def _listen(self, node: Node, talk: Talk) -> None:
        now, is_fresh = self.clock.at, talk.stream is None
        with unit_of_work(self.sessions) as session:
            if talk.stream is None:
                _, talk.stream = agents.open_stream(session, str(node.token), now=now)
                node.begin()
            lines = agents.assignments(session, talk.node_id, self.commons, now=now)
            fresh = [line for line in lines if line.id not in talk.sent]
            agents.deliver(session, [line.id for line in fresh], now=now)
        for line in fresh:
            node.hear(line.wire)
        if is_fresh:
            node.hear(None)
        talk.sent = frozenset(line.id for line in lines)

    def _tell(self, node: Node) -> None:
        while batch := node.batch():
            told = [Sequenced(number, report) for number, report in batch]
            with unit_of_work(self.sessions) as session:
                reports.accept(session, str(node.token), node.boot, told, now=self.clock.at)
            node.confirm()

    def _cut_off(self, node: Node) -> None:
        """The host is no more: its sockets are closed."""
        talk = self.talks.pop(node, None)
        if talk is not None and talk.stream is not None and not node.machine.is_cut:
            with unit_of_work(self.sessions) as session:
                agents.close_stream(session, talk.node_id, talk.stream, now=self.clock.at)

    def _begin_anew(self, node: Node) -> None:
        """The network is back: the stream of before leads nowhere."""
        if node in self.talks:
            self.talks[node].stream, self.talks[node].sent = None, frozenset()
