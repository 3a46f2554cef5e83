"""Workers of a control plane on EC2 are killed with SIGKILL at random points of create, replace and delete, while EC2 lists new instances 5 s late
(R-9: a launch that nobody remembered leaked its instance).

Time is the test's own: what takes minutes on EC2 takes none here. The kills are real: a process that was at work is gone, wherever it was. A failed
walk prints its seed; ``EC2_KILL_SEED`` repeats it, and takes several.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from models.cluster import queries as clusters
from models.cluster.counts import request_counts
from models.cluster.states import ClusterState
from models.errors import InTransition, NotFound
from models.node import queries as nodes
from models.node import wishes
from models.node.states import NodeState
from models.session import unit_of_work
from tests.sim import ec2_worker
from tests.workers.providers import ec2_front
from tests.workers.small_plane import SmallPlane
from workers.sweep import ripe_kinds

SEEDS = [int(seed) for seed in os.environ.get("EC2_KILL_SEED", "2").split()]
LATE_S = 5.0
SETTLES_S = 6.0
ENDS_AFTER_S = 2.0
_DANGER = 0.8
_LONGEST_S = 30.0


@pytest.fixture(scope="module")
def moto_url(tmp_path_factory):
    with ec2_front.moto(tmp_path_factory.mktemp("moto")) as url:
        yield url


@pytest.fixture(scope="module")
def door():
    with ec2_front.Door().open() as door:
        yield door


@dataclass
class Killer:
    """Kills the worker at a moment of a step's: before or after the n-th call that reaches EC2, a little later, or after some time at work."""

    dice: random.Random
    worker: ec2_worker.Worker
    kills: int = 0
    typical_s: float = 0.05
    _at: tuple[str, int] | None = None
    _deadline: float | None = None
    _delay_s: float = 0.0
    _seen: dict[str, int] = field(default_factory=dict)

    def aim(self, *, danger: float) -> None:
        self._at, self._deadline, self._seen = None, None, {}
        if self.dice.random() >= danger:
            return
        if self.dice.random() < 0.7:
            self._at = (self.dice.choice(("before", "after")), self.dice.randint(1, 4))
            self._delay_s = self.dice.choice((0.0, 0.0, 0.002, 0.01))
        else:
            self._deadline = time.monotonic() + self.dice.uniform(0, self.typical_s)

    def on_call(self, when: str) -> None:
        self._seen[when] = self._seen.get(when, 0) + 1
        if self._at == (when, self._seen[when]):
            if self._delay_s:
                self._deadline = time.monotonic() + self._delay_s
            else:
                self.worker.kill()

    def wait(self) -> None:
        """Returns when the step has ended, in whichever way."""
        begun = time.monotonic()
        while not self.worker.has_ended(within_s=0.001):
            assert time.monotonic() < begun + _LONGEST_S, "a step of the worker's does not end"
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._deadline = None
                self.worker.kill()
        if self.worker.end() == 0:
            self.typical_s = 0.8 * self.typical_s + 0.2 * (time.monotonic() - begun)
        else:
            self.kills += 1


class RemotePlane(SmallPlane):
    """Its agents and its callers are here; its work is done by a process that may die of it."""

    killer: Killer
    front: ec2_front.Front
    danger: float = 0.0

    def work(self) -> int:
        if ripe_kinds(self):
            self.step("work")
        return 0

    def agents(self) -> None:
        """Those of instances that live, be they known or not: who is not is turned away."""
        with unit_of_work(self.sessions) as session:
            for instance_id in sorted(self.front.shown()):
                with suppress(NotFound):
                    node = nodes.by_instance(session, instance_id, lock=True)
                    self._agent(session, node, self.front.started.get(instance_id, 0))

    def step(self, kind: str) -> None:
        self.killer.aim(danger=self.danger)
        self.killer.worker.begin(kind, self.clock.at)
        self.killer.wait()


class Walk:
    def __init__(self, plane: RemotePlane, front: ec2_front.Front, seed: int) -> None:
        self.plane = plane
        self.front = plane.front = front
        self.dice = random.Random(seed)
        front.now = lambda: plane.clock.at.timestamp()
        front.late, front.ends_after = LATE_S, ENDS_AFTER_S
        front.on_call = plane.killer.on_call
        plane.danger = _DANGER
        self.cluster_id = plane.cluster(2, is_continuous=True)

    def ask(self) -> None:
        now = self.plane.clock.at
        with unit_of_work(self.plane.sessions) as session:
            cluster = clusters.find(session, "c1", lock=True)
            (group,) = clusters.groups(session, cluster.id)
            present = nodes.of_cluster(session, cluster.id)
            node = nodes.get(session, self.dice.choice(present).id, lock=True) if present else None
            asked: dict[str, Callable[[], Any]] = {
                "grow": lambda: request_counts(session, cluster, {group: 1}, current={}, why="The walk.", now=now),
            }
            if node is not None:
                asked |= {
                    "reboot": lambda: wishes.request_reboot(session, node, why="the walk", now=now),
                    "replace": lambda: wishes.request_replacement(session, node, why="the walk", now=now),
                    "remove": lambda: self._remove(session, cluster, group, node, now),
                }
            try:
                asked[self.dice.choice(sorted(asked))]()
            except InTransition:
                return

    def _remove(self, session, cluster, group, node, now) -> None:
        wishes.request_removal(session, node, why="the walk", now=now)
        request_counts(session, cluster, {group: -1}, current={}, why="The walk.", now=now)

    def come_to_rest(self) -> None:
        self.plane.danger = 0.0
        for _ in range(30):
            self.plane.run(6, every=2)
            self.plane.step("sweep")
            if self._is_at_rest():
                return

    def _is_at_rest(self) -> bool:
        states = self.plane.states()
        if states["cluster"] not in (["in_service"], ["deleted"]):
            return False
        return all(state in ("ready", "gone") for state in states["node"]) and set(self.front.living) == self._known()

    def _known(self) -> set[str | None]:
        return {node.instance_id for node in self.plane.nodes(self.cluster_id)}

    def check(self) -> None:
        with unit_of_work(self.plane.sessions) as session:
            (group,) = clusters.groups(session, self.cluster_id)
            target = group.target_count
        present = self.plane.nodes(self.cluster_id)
        assert [node.state for node in present] == [NodeState.READY] * target
        assert set(self.front.living) == self._known(), "EC2's instances are not the nodes that are known"


@pytest.fixture
def walk(sessions, listen, database_url, moto_url, door, tmp_path):
    workers = []

    def walk(seed: int) -> Walk:
        print(f"EC2_KILL_SEED={seed}")
        front = door.front = ec2_front.Front(moto_url)
        told = (door.url, uuid.uuid4().hex, str(SETTLES_S))
        workers.append(ec2_worker.Worker.start(database_url, *told, log=tmp_path / "worker.log"))
        plane = RemotePlane(sessions, listen(), provider=ec2_worker.provider(*told[:2], SETTLES_S))  # type: ignore[arg-type]
        plane.killer = Killer(random.Random(seed), workers[-1])
        return Walk(plane, front, seed)

    yield walk
    for worker in workers:
        worker.close()


def take(here: Walk) -> None:
    begun = time.monotonic()
    for _ in range(4):
        here.plane.run(here.dice.choice((1, 3, 6)), every=1)
        here.ask()
        if here.dice.random() < 0.3:
            here.plane.step("sweep")
    here.plane.run(2, every=1)
    here.come_to_rest()
    here.check()
    here.plane.danger = _DANGER
    here.plane.delete_cluster(here.cluster_id)
    here.plane.run(5, every=1)
    here.come_to_rest()
    assert here.plane.cluster_state(here.cluster_id) is ClusterState.DELETED
    assert not here.front.living, "instances are left over"
    assert here.plane.killer.kills
    print(
        f"{here.plane.killer.kills} kills, {len(here.front.asked_for('RunInstances'))} launches asked for, {time.monotonic() - begun:.1f} s"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_whenever_a_worker_is_killed_no_instance_is_lost_or_left_over(walk, seed):
    take(walk(seed))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_a_hundred_walks_with_killed_workers_leave_no_instance_over(walk, seed):
    take(walk(seed))
