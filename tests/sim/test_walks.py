"""Long random walks of the whole plane in one process: a simulated provider, a clock that is told the time, real rows, faults of every kind.

A failed walk prints its seed; ``WALK_SEED`` repeats it, and takes several.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from models.cluster.states import ClusterState
from models.errors import InTransition
from models.job.states import ENDED, JobState, ProcessState
from models.node import queries as nodes
from models.node import wishes
from models.node.states import NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from tests.workers.saving import Saving
from tests.workers.small_plane import SmallPlane
from workers.providers.base import HostRef, HostSeen, HostSpec, ProviderError
from workers.providers.simulated import SimulatedProvider

SEEDS = [int(seed) for seed in os.environ.get("WALK_SEED", "1 2 3").split()]
NODES = 5


@dataclass
class MoodyProvider(SimulatedProvider):
    """Every so often a call fails, before or after it had its effect: the caller cannot tell which."""

    moods: random.Random = field(default_factory=lambda: random.Random(0))
    trouble: float = 0.0

    def launch(self, spec: HostSpec) -> HostSeen:
        self._perhaps_fail()
        host = super().launch(spec)
        self._perhaps_fail()
        return host

    def describe(self, ref: HostRef) -> HostSeen:
        self._perhaps_fail()
        return super().describe(ref)

    def reboot(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        self._perhaps_fail()
        host = super().reboot(ref, spec)
        self._perhaps_fail()
        return host

    def reimage(self, ref: HostRef, spec: HostSpec) -> HostSeen:
        self._perhaps_fail()
        host = super().reimage(ref, spec)
        self._perhaps_fail()
        return host

    def release(self, ref: HostRef) -> None:
        self._perhaps_fail()
        super().release(ref)
        self._perhaps_fail()

    def _perhaps_fail(self) -> None:
        if self.moods.random() < self.trouble:
            message = "the provider is in a bad mood"
            raise ProviderError(message)


class TwicePlane(SmallPlane):
    """Every step is taken twice, as if every message came twice."""

    def reconcile(self, kind: str, row_id: str) -> None:
        super().reconcile(kind, row_id)
        super().reconcile(kind, row_id)


class Walk:
    def __init__(self, plane: SmallPlane, seed: int) -> None:
        self.plane = plane
        self.dice = random.Random(seed)
        self.cluster_id = plane.serving(NODES)
        self.job_id = plane.training(self.cluster_id, replicas=3, spares=1, max_restarts=1000)

    def fault(self) -> None:
        members = [process for process in self.plane.members(self.job_id) if process.state is ProcessState.READY]
        holders = [process for process in members if process.reformed]
        kind = self.dice.choice(
            ("kill-rank", "kill-node", "restart-agent", "glitch", "reboot", "reimage", "replacement", "nothing")
        )
        if len(holders) < 2 or kind == "nothing":
            return
        victim = self.dice.choice(members)
        node = self.plane.node(victim.node_id)
        if node.state is not NodeState.READY or node.instance_id in self.plane.dead:
            return
        witness = next(process for process in members if process.node_id != victim.node_id)
        match kind:
            case "kill-rank":
                self.plane.exit(victim.id, signal=9)
            case "kill-node":
                self.plane.die(node.instance_id)
                self.plane.complain(witness.id)
            case "restart-agent":
                self.plane.silence(node.instance_id)
                self.plane.run(self.dice.choice((0.5, 2)))
                self.plane.speak_again(node.instance_id)
            case "glitch":
                self.plane.complain(witness.id)
            case wish:
                self.ask(node.id, wish)

    def ask(self, node_id: str, wish: str) -> None:
        """Somebody asks for a restart or a replacement of a node at work."""
        how = {"image": "2.0.0"} if wish == "reimage" else {}
        with unit_of_work(self.plane.sessions) as session, suppress(InTransition):
            node = nodes.get(session, node_id, lock=True)
            getattr(wishes, f"request_{wish}")(session, node, why="the walk", now=self.plane.clock.at, **how)

    def check(self) -> None:
        """What must hold at every moment."""
        assert self.plane.job_state(self.job_id) not in ENDED, self.plane.states()
        for generation in self.plane.generations(self.job_id):
            assert len(set(generation.members)) == 3
        wanted = [node for node in self.plane.nodes(self.cluster_id) if node.is_wanted]
        assert len(wanted) <= NODES

    def come_to_rest(self) -> None:
        def is_whole() -> bool:
            return self.plane.job_state(self.job_id) is JobState.TRAINING and self.plane.states()["node"] == ["ready"] * NODES

        self.plane.run_until(is_whole, seconds=200)


@pytest.fixture
def walk(sessions, listen, request):
    def walk(seed: int, kind: type[SmallPlane] = SmallPlane, provider: SimulatedProvider | None = None) -> Walk:
        print(f"WALK_SEED={seed}")
        return Walk(kind(sessions, listen(NUDGE), provider=provider or SimulatedProvider()), seed)

    return walk


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])])
def test_whatever_happens_the_job_trains_again_and_the_cluster_is_whole_again(walk, seed):
    here = walk(seed)
    for _ in range(12):
        here.fault()
        here.check()
        here.plane.run(here.dice.choice((0.5, 1, 3)))
        here.check()
    here.come_to_rest()
    here.plane.delete_cluster(here.cluster_id)
    here.plane.run_until(lambda: here.plane.cluster_state(here.cluster_id) is ClusterState.DELETED)
    assert here.plane.provider.hosts() == ()


def test_every_step_may_be_taken_twice(walk):
    here = walk(4, TwicePlane)
    for _ in range(6):
        here.fault()
        here.plane.run(1)
        here.check()
    here.come_to_rest()


def test_a_provider_whose_calls_fail_half_the_time_only_costs_time(walk):
    provider = MoodyProvider(moods=random.Random(5))
    here = walk(5, provider=provider)
    provider.trouble = 0.5
    for _ in range(6):
        here.fault()
        here.plane.run(2)
        here.check()
    provider.trouble = 0.1
    here.come_to_rest()


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])])
def test_a_job_that_saves_goes_on_whoever_dies_and_its_newest_durable_step_is_always_there(walk, seed):
    """The nodes fall as well, all of them at times; memory goes with them, the store stays."""
    here = walk(seed)
    saving = Saving(here.plane, keep={"last": 2}, cluster_id=here.cluster_id, job_id=here.job_id)
    durable = 0
    for step in range(10, 80, 10):
        match here.dice.choice(("save", "drain", "drain", "kill-all", "kill-nodes", "one")):
            case "save" if here.plane.job_state(here.job_id) is JobState.TRAINING:
                saving.save(step)
            case "drain" if here.plane.job_state(here.job_id) is JobState.TRAINING:
                saving.save_and_drain(step)
                durable = step
            case "kill-all" if durable:
                saving.kill_all()
            case "kill-nodes" if durable:
                for node_id in {process.node_id for process in here.plane.members(here.job_id)}:
                    here.plane.die(here.plane.node(node_id).instance_id)
            case "one":
                here.fault()
        here.plane.run(here.dice.choice((0.5, 2, 8)))
        here.check()
        assert not durable or durable in saving.stored()
        assert len(saving.stored()) <= 3
    here.come_to_rest()
