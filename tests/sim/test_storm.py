"""Everything at once: callers, workers, agents and deaths, each in a thread of its own, on one real database.

No statement may fail, a deadlock least of all; what was asked for ends; what is deleted in the middle of it leaves no host behind.
A failed storm prints its seed; ``STORM_SEED`` repeats it, and takes several.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from api.operations import additions, attachments, batches, clusters, health, moves, software
from api.operations.additions import Addition, AdditionWish
from api.operations.attachments import AttachmentWish
from api.operations.batches import BatchChoice
from api.operations.clusters import ClusterChange
from api.operations.health import CheckWish, GroupCheck
from api.operations.moves import MoveWish, Place
from api.operations.software import SoftwareWish
from api.operations.work import Caller, Work
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import DomainError, NotFound
from models.health.states import CheckKind
from models.image.changes import request_release
from models.image.queries import DEFAULT
from models.node import queries as nodes
from models.node.beats import Heartbeat, report_beats
from models.node.changes import report_stream
from models.node.states import NodeState
from models.node.table import Node
from models.notify import NUDGE
from models.operation.states import OperationState
from models.operation.table import Operation
from models.session import connect, unit_of_work
from models.session import sessions as session_factory
from tests import rows
from tests.workers.small_plane import SmallPlane
from workers.providers.simulated import SimulatedProvider

SEEDS = [int(seed) for seed in os.environ.get("STORM_SEED", "1").split()]
RELEASES = ("1.0.0", "1.1.0", "1.2.0")
GROUPS = ("a", "b")
NAMES = ("c1", "c2")
CALLERS, WORKERS = 3, 4
REQUESTS = 60


class LockedProvider(SimulatedProvider):
    """One call at a time."""

    _lock = threading.RLock()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        def call(*given: Any) -> Any:
            with SimulatedProvider.__getattribute__(self, "_lock"):
                return found(*given)

        return call


class Storm:
    def __init__(self, plane: SmallPlane, seed: int) -> None:
        self.plane = plane
        self.seed = seed
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.told: Counter[str] = Counter()
        with unit_of_work(plane.sessions) as session:
            for version in RELEASES:
                request_release(session, version, image_id=DEFAULT, now=plane.clock.at)
        for name in NAMES:
            self.create(name)
        plane.run_until(lambda: plane.states()["group"] == ["in_service"] * 4 and plane.states()["node"] == ["ready"] * 12)

    def create(self, name: str) -> None:
        with unit_of_work(self.plane.sessions) as session:
            groups = tuple(rows.group_spec(group, 3, image=RELEASES[0]) for group in GROUPS)
            settings = {"Orchestrator": {"Eks": {"ClusterArn": f"arn:aws:eks:us-east-1:123456789012:cluster/{name}"}}}
            rows.cluster(session, name, groups=groups, is_continuous=True, settings=settings)

    def blow(self) -> None:
        """Until every caller has made his requests; whoever raised what he must not is kept."""
        callers = [
            self._thread(lambda number=number: self._call(random.Random(self.seed * 100 + number))) for number in range(CALLERS)
        ]
        others = [self._thread(self._repeat(self._reconcile(number))) for number in range(WORKERS)]
        others += [self._thread(self._repeat(step)) for step in (self._agents, self._beats, self._pass)]
        for caller in callers:
            caller.join()
        self.is_over.set()
        for other in others:
            other.join()

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (a thread's failure is the test's)
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _repeat(self, step: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            while not self.is_over.is_set():
                step()

        return work

    # ------------------------------------------------------------------ the plane and the world

    def _reconcile(self, number: int) -> Callable[[], None]:
        kinds = list(self.plane.driver.reconcilers)
        kinds = kinds[number:] + kinds[:number]

        def step() -> None:
            for kind in kinds:
                for row_id in self.plane.driver.due(kind, limit=20):
                    self.plane.driver.reconcile(kind, row_id)

        return step

    def _agents(self) -> None:
        for host in self.plane.provider.hosts():
            if host.is_alive:
                with suppress(NotFound), unit_of_work(self.plane.sessions) as session:
                    self.plane._agent(session, nodes.by_instance(session, host.instance_id, lock=True), host.start)

    def _beats(self) -> None:
        with unit_of_work(self.plane.sessions) as session:
            alive = [host.claim for host in self.plane.provider.hosts() if host.is_alive]
            known = select(Node.id, Node.boot, Node.beat_sequence).where(Node.boot.is_not(None), Node.id.in_(alive))
            live = session.execute(known).all()
            report_beats(session, [Heartbeat(one.id, one.boot, one.beat_sequence + 1, self.plane.clock.at) for one in live])

    def _pass(self) -> None:
        """A second takes a fiftieth of one."""
        self.is_over.wait(0.02)
        self.plane.clock.at += timedelta(seconds=1)

    # ------------------------------------------------------------------ callers

    def _call(self, dice: random.Random) -> None:
        for _ in range(REQUESTS):
            name = dice.choice(sorted(self._requests()))
            try:
                with unit_of_work(self.plane.sessions) as session:
                    work = Work(session, self.plane.clock.at, "us-east-1", Caller("123456789012", "storm"))
                    self._requests()[name](work, dice)
            except DomainError as error:
                self.told[f"{name}: {type(error).__name__}"] += 1
            else:
                self.told[name] += 1
            self.is_over.wait(dice.uniform(0, 0.2))

    def _requests(self) -> dict[str, Callable[[Work, random.Random], object]]:
        return {
            "add": lambda work, dice: additions.add(work, AdditionWish(dice.choice(NAMES), (Addition(dice.choice(GROUPS), 1),))),
            "attach": lambda work, dice: attachments.attach_volume(work, self._attachment(work, dice)),
            "detach": lambda work, dice: attachments.detach_volume(work, self._attachment(work, dice)),
            "check": lambda work, dice: health.start(work, self._check(dice)),
            "delete nodes": lambda work, dice: batches.delete(work, self._choice(work, dice)),
            "kill": lambda work, dice: self._kill(work, dice),
            "move": self._move,
            "reboot": lambda work, dice: batches.reboot(work, self._choice(work, dice)),
            "replace": lambda work, dice: batches.replace(work, self._choice(work, dice)),
            "scale": self._scale,
            "software": lambda work, dice: software.update(work, self._software(dice)),
        }

    def _some(self, work: Work, dice: random.Random, name: str, count: int = 1) -> list[str]:
        wanted = select(Node.instance_id).join(Cluster, Cluster.id == Node.cluster_id)
        known = work.session.scalars(
            wanted.where(Cluster.name == name, Node.state != NodeState.GONE, Node.instance_id.is_not(None)).order_by(Node.id)
        ).all()
        return dice.sample(known, min(count, len(known)))

    def _choice(self, work: Work, dice: random.Random) -> BatchChoice:
        name = dice.choice(NAMES)
        return BatchChoice(name, tuple(self._some(work, dice, name, dice.choice((1, 2, 3)))))

    def _attachment(self, work: Work, dice: random.Random) -> AttachmentWish:
        name = dice.choice(NAMES)
        instance = next(iter(self._some(work, dice, name)), "i-0000000000000000f")
        return AttachmentWish(name, instance, f"vol-{dice.randrange(4):017x}")

    def _check(self, dice: random.Random) -> CheckWish:
        return CheckWish(dice.choice(NAMES), (GroupCheck(dice.choice(GROUPS), (CheckKind.STRESS,), None, {}),))

    def _kill(self, work: Work, dice: random.Random) -> None:
        """Power off: the provider sees it, and the node's connections are reset."""
        hosts = [host for host in self.plane.provider.hosts() if host.is_alive]
        if hosts:
            host = dice.choice(hosts)
            node = nodes.by_instance(work.session, host.instance_id, lock=True)
            report_stream(work.session, node, is_open=False, now=work.now)
            self.plane.provider.kill(host.claim)

    def _move(self, work: Work, dice: random.Random) -> None:
        arns = dict(work.session.execute(select(Cluster.name, Cluster.arn).where(Cluster.state != ClusterState.DELETED)).all())
        ends = [Place(arns[dice.choice(NAMES)], dice.choice(GROUPS)) for _ in range(2)]
        moves.move(work, MoveWish(*ends, count=1))

    def _scale(self, work: Work, dice: random.Random) -> None:
        spec = rows.group_spec(dice.choice(GROUPS), dice.choice((2, 3, 4)))
        clusters.update(work, ClusterChange(dice.choice(NAMES), groups=(spec,)))

    def _software(self, dice: random.Random) -> SoftwareWish:
        groups = tuple((group, dice.choice(RELEASES)) for group in dice.sample(GROUPS, dice.choice((1, 2))))
        size = {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": dice.choice((1, 5))}}}
        return SoftwareWish(dice.choice(NAMES), groups=groups, deployment=size)

    # ------------------------------------------------------------------ the calm after it

    def come_to_rest(self, claim: Callable[[], bool] | None = None) -> None:
        """Time passes, an hour at most, until all that was asked for has ended."""
        for _ in range(720):
            if (claim or self._is_settled)():
                return
            self.plane.run(5, every=2.5)
            self.plane.look_at_nodes()
        raise AssertionError(self._open())

    def _open(self) -> str:
        with unit_of_work(self.plane.sessions) as session:
            lines = [f"{one.id} {one.type} {one.details}" for one in session.query(Operation).filter_by(state="in_progress")]
            lines += [f"{one.name} {one.state} {one.target_count} {one.image_wanted}" for one in session.query(InstanceGroup)]
            told = (
                Node.logical_id,
                Node.group_name,
                Node.state,
                Node.is_wanted,
                Node.restart,
                Node.move_to,
                Node.image,
                Node.held_for,
                Node.facts,
                Node.operation_id,
            )
            lines += [str(one) for one in session.query(*told).filter(Node.state != NodeState.GONE)]
        return "\n".join([str(self.plane.states()), *lines])

    def _is_settled(self) -> bool:
        with unit_of_work(self.plane.sessions) as session:
            states = [*session.scalars(select(Cluster.state)), *session.scalars(select(InstanceGroup.state))]
            settled = (ClusterState.IN_SERVICE, ClusterState.DELETED, GroupState.IN_SERVICE, GroupState.GONE, GroupState.FAILED)
            is_open = session.scalars(select(Operation.id).where(Operation.state == OperationState.IN_PROGRESS)).first()
            return is_open is None and all(state in settled for state in states)

    def delete(self, name: str) -> None:
        with unit_of_work(self.plane.sessions) as session:
            clusters.delete(Work(session, self.plane.clock.at, "us-east-1", Caller("123456789012", "storm")), name)


@pytest.fixture
def storm(database_url, listen, request):
    engine = connect(database_url, pool_size=CALLERS + WORKERS + 4)

    def storm(seed: int) -> Storm:
        print(f"STORM_SEED={seed}")
        return Storm(SmallPlane(session_factory(engine), listen(NUDGE), provider=LockedProvider()), seed)

    yield storm
    engine.dispose()


def _failures(caplog) -> list[str]:
    return [str(record.exc_text or record.message) for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_asked_at_once_no_statement_fails_and_all_of_it_ends(storm, caplog, seed):
    here = storm(seed)
    here.blow()
    assert here.errors == []
    assert _failures(caplog) == []
    here.come_to_rest()
    print(sorted(here.told.items()))
    for name in NAMES:
        here.delete(name)
    here.come_to_rest(lambda: here.plane.states()["cluster"] == ["deleted"] * len(NAMES))
    assert here.plane.provider.hosts() == ()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_that_are_deleted_in_the_middle_of_everything_leave_no_host_behind(storm, caplog, seed):
    here = storm(seed + 1000)
    here.blow()
    for name in NAMES:
        here.delete(name)
    here.come_to_rest(lambda: here.plane.states()["cluster"] == ["deleted"] * len(NAMES))
    here.come_to_rest()
    assert here.errors == []
    assert _failures(caplog) == []
    assert here.plane.provider.hosts() == ()
