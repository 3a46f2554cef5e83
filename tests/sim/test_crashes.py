"""Random walks on which the control plane is killed in the middle of its calls, by a provider that shows new hosts late
(R-9: a launch that nobody remembered leaked its instance).

A failed walk prints its seed; ``CRASH_SEED`` repeats it, and takes several.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from models.cluster import queries as clusters
from models.cluster.counts import request_counts
from models.cluster.states import ClusterState
from models.condition.changes import Finding, report_fault
from models.condition.states import FaultClass
from models.errors import InTransition
from models.node import queries as nodes
from models.node import wishes
from models.node.states import NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.small_plane import SmallPlane
from workers import orphans
from workers.plane import Plane
from workers.providers.simulated import SimulatedProvider

SEEDS = [int(seed) for seed in os.environ.get("CRASH_SEED", "1").split()]
LATE = timedelta(seconds=5)


class _KilledError(BaseException):
    """As ``kill -9``: nothing is caught, nothing is cleaned up."""


@dataclass
class DeadlyProvider(SimulatedProvider):
    """Every so often the control plane dies, before a call has its effect or after it: nobody will ever know which."""

    dice: random.Random = field(default_factory=lambda: random.Random(0))
    danger: float = 0.0
    kills: int = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in {"launch", "release", "reboot", "reimage", "describe"}:
            return found

        def call(*given: Any) -> Any:
            self._perhaps_die()
            answer = found(*given)
            self._perhaps_die()
            return answer

        return call

    def _perhaps_die(self) -> None:
        if self.dice.random() < self.danger:
            self.kills += 1
            raise _KilledError


class MortalPlane(SmallPlane):
    """A worker that dies leaves its lease behind, and its row waits for that to run out."""

    def reconcile(self, kind: str, row_id: str) -> None:
        try:
            super().reconcile(kind, row_id)
        except _KilledError:
            return


class Walk:
    def __init__(self, plane: MortalPlane, seed: int) -> None:
        self.plane = plane
        self.provider: DeadlyProvider = plane.provider  # type: ignore[assignment]
        self.provider.now = plane.clock.now
        self.dice = random.Random(seed)
        self.provider.dice = random.Random(seed)
        self.provider.danger = 0.3
        self.cluster_id = plane.cluster(3, is_continuous=True)

    def ask(self) -> None:
        """Something that callers may ask for, or a host's death."""
        now = self.plane.clock.at
        with unit_of_work(self.plane.sessions) as session:
            cluster = clusters.find(session, "c1", lock=True)
            (group,) = clusters.groups(session, cluster.id)
            present = nodes.of_cluster(session, cluster.id)
            node = nodes.get(session, self.dice.choice(present).id, lock=True) if present else None
            asked: dict[str, Callable[[], Any]] = {
                "nothing": lambda: None,
                "grow": lambda: request_counts(session, cluster, {group: 1}, current={}, why="The walk.", now=now),
            }
            if node is not None:
                asked |= {
                    "reboot": lambda: wishes.request_reboot(session, node, why="the walk", now=now),
                    "reimage": lambda: wishes.request_reimage(session, node, image="2.0.0", why="the walk", now=now),
                    "replace": lambda: wishes.request_replacement(session, node, why="the walk", now=now),
                    "remove": lambda: self._remove(session, cluster, group, node, now),
                    "fault": lambda: self._hurt(session, node, now),
                }
            try:
                asked[self.dice.choice(sorted(asked))]()
            except InTransition:
                return

    def _remove(self, session, cluster, group, node, now) -> None:
        wishes.request_removal(session, node, why="the walk", now=now)
        request_counts(session, cluster, {group: -1}, current={}, why="The walk.", now=now)

    def _hurt(self, session, node, now) -> None:
        """A fault that calls for another host, told by the node's agent."""
        finding = Finding(f"f-{now.isoformat()}", FaultClass.REPLACE, "xid:74", "T", "R", "the walk", now)
        report_fault(session, node, finding, now=now)

    def come_to_rest(self) -> None:
        self.provider.danger = 0.0
        plane = Plane(self.plane.sessions, self.plane.clock, self.plane.driver, self.provider)
        for _ in range(12):
            self.plane.run(10, every=1)
            orphans.release(plane)
            if self._is_at_rest():
                return

    def _is_at_rest(self) -> bool:
        held = {host.claim for host in self.provider.hosts()}
        return all(state in ("ready", "gone") for state in self.plane.states()["node"]) and held == {
            node.id for node in self.plane.nodes(self.cluster_id)
        }

    def check(self) -> None:
        with unit_of_work(self.plane.sessions) as session:
            (group,) = clusters.groups(session, self.cluster_id)
            target = group.target_count
        present = self.plane.nodes(self.cluster_id)
        assert [node.state for node in present] == [NodeState.READY] * target
        assert {host.claim for host in self.provider.hosts()} == {node.id for node in present}
        assert all(host.start == self.plane.node(host.claim).host_start for host in self.provider.hosts())


@pytest.fixture
def walk(sessions, listen):
    def walk(seed: int) -> Walk:
        print(f"CRASH_SEED={seed}")
        return Walk(MortalPlane(sessions, listen(NUDGE), provider=DeadlyProvider(late=LATE)), seed)

    return walk


def take(here: Walk) -> None:
    for _ in range(8):
        here.plane.run(here.dice.choice((0.5, 2, 6)))
        here.ask()
    here.plane.run(2)
    here.come_to_rest()
    here.check()
    here.provider.danger = 0.3
    here.plane.delete_cluster(here.cluster_id)
    here.plane.run(10, every=1)
    here.come_to_rest()
    assert here.plane.cluster_state(here.cluster_id) is ClusterState.DELETED
    assert here.provider.hosts() == ()
    assert here.provider.kills


@pytest.mark.parametrize("seed", SEEDS)
def test_whenever_the_control_plane_dies_no_host_is_lost_or_left_over(walk, seed):
    take(walk(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_deaths_of_the_control_plane_leave_no_host_over(walk, seed):
    take(walk(seed))
