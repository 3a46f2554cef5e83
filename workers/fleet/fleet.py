"""A simulated fleet: its cloud, its hosts' agents, its jobs and its clock, in one loop of one process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from workers.fleet.cloud import Cloud, Hooks, Machine
from workers.fleet.connection import Connection
from workers.fleet.http import Http
from workers.fleet.node import Node
from workers.fleet.scenario import Scenario
from workers.fleet.timeline import Timeline
from workers.fleet.training import Trainings

log = logging.getLogger(__name__)


class Agents:
    """The nodes of a cloud's hosts that are up. ``came`` and ``went`` are called with each; whoever carries them listens there."""

    def __init__(self, scenario: Scenario, timeline: Timeline) -> None:
        self.timeline = timeline
        self.trainings = Trainings(timeline, scenario.training)
        self.nodes: dict[Machine, Node] = {}
        self.came: Callable[[Node], None] = lambda _: None
        self.went: Callable[[Node], None] = lambda _: None
        self.healed: Callable[[Node], None] = lambda _: None
        hooks = Hooks(self._started, self._stopped, self._faulty, self._noticed, self._healed)
        self.cloud = Cloud(scenario=scenario, timeline=timeline, hooks=hooks)

    def _started(self, machine: Machine) -> None:
        node = self.nodes[machine] = Node(machine, self.cloud, self.trainings)
        self.came(node)

    def _stopped(self, machine: Machine) -> None:
        node = self.nodes.pop(machine, None)
        if node is not None:
            node.stop()
            self.went(node)

    def _faulty(self, machine: Machine, number: int) -> None:
        self.nodes[machine].break_down(number)

    def _noticed(self, machine: Machine, deadline: float) -> None:
        self.nodes[machine].warn(self.timeline.unix(deadline))

    def _healed(self, machine: Machine) -> None:
        if machine in self.nodes:
            self.healed(self.nodes[machine])


class Fleet:
    """Runs in the current loop. ``api_url`` is where the agents' door is."""

    def __init__(self, scenario: Scenario, *, api_url: str, now_unix: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.timeline = Timeline(self._passed, began_at=now_unix, speed=scenario.speed)
        self._changed = asyncio.Event()
        self.timeline.hurried = self._changed.set
        self._speed = scenario.speed
        self._http = Http(api_url)
        self._dice = random.Random(f"{scenario.seed}/network")  # noqa: S311  (jitter)
        self._talking: dict[Node, tuple[Connection, asyncio.Task[None]]] = {}
        self.agents = Agents(scenario, self.timeline)
        self.agents.came, self.agents.went, self.agents.healed = self._came, self._went, self._healed

    @property
    def cloud(self) -> Cloud:
        return self.agents.cloud

    async def run(self) -> None:
        """Lets things happen when their time comes, until cancelled. Then every agent falls silent."""
        try:
            while True:
                self._changed.clear()
                self.timeline.advance()
                await self._until_next()
        finally:
            tasks = [task for _, task in self._talking.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._http.close()

    def counts(self) -> dict[str, Any]:
        """How the fleet fares, for a person."""
        cloud = self.cloud
        hosts = cloud.machines.values()
        told: Counter[str] = Counter(cloud.counts)
        return {
            "seconds": round(self.timeline.now, 1),
            "hosts": len(hosts),
            "up": sum(machine.is_on for machine in hosts),
            "cut off": sum(machine.is_cut for machine in hosts),
            "launches": len(cloud.launches),
            "jobs": len(self.agents.trainings),
            **told,
        }

    def _passed(self) -> float:
        return (self._loop.time() - self._began) * self._speed

    async def _until_next(self) -> None:
        next_at = self.timeline.next_at
        wait_s = None if next_at is None else max(0.0, self.timeline.real(next_at - self.timeline.now))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()

    def _came(self, node: Node) -> None:
        connection = Connection(node, self._http, self._dice)
        task = self._loop.create_task(connection.run())
        self._talking[node] = (connection, task)
        task.add_done_callback(lambda done: self._ended(node, done))

    def _went(self, node: Node) -> None:
        talking = self._talking.pop(node, None)
        if talking is not None:
            talking[1].cancel()

    def _healed(self, node: Node) -> None:
        if node in self._talking:
            self._talking[node][0].heal()

    def _ended(self, node: Node, task: asyncio.Task[None]) -> None:
        self._talking.pop(node, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("an agent failed", exc_info=task.exception())
