"""The goodput of a job on 2,304 accelerators over two weeks of faults: the real plan decides, the ledger books, time is told.

What is simulated is how long things take, and it is said here. The faults are those that were published for clusters of this kind; the recovery is what
this runtime has measured on a few processes, stretched by the number of nodes as if it grew linearly with them, or what the managed service that
this one is measured against has published for 2,304 accelerators. Steps are not computed.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from everstep.evidence import HANG_AFTER_S
from models.job.accounts import micros
from models.job.ledger import Account, Books, Done, History, Holding, Membership, Tally, book
from models.job.states import JobState, ProcessState
from tests.workers.plans.job_world import START, World, world
from workers.plans.job_seen import Publish

NODES, PER_NODE, SPARES, HOSTS = 288, 8, 8, 300
DAYS = 14
FAULTS_PER_NODE_DAY = {
    "Llama 3, 16,384 accelerators": 4.7e-4 * PER_NODE,
    "RSC-1 and RSC-2, as at 1,024 accelerators": 23.7e-3,
}
"""Unexpected interruptions: 419 in 54 days of 16,384 (arXiv:2407.21783); a mean time of 7.9 h to the next at 1,024 (arXiv:2410.21680)."""
RECOVERY_S = {"measured, stretched": 0.7 * NODES / 3, "published for 2,304 accelerators": 90.0}
"""From the decision to the state in every rank. 0.7 s is the bound that the benchmark holds three processes to."""
STEP_S, STALL_S, SAVE_EVERY = 10.0, 0.5, 10
HOST_S = 600.0
"""Until a lost host has been replaced."""
HANGS = 0.15
"""So many of the faults are hangs, of which nobody hears anything for as long as it takes to be sure."""


@dataclass
class Fleet:
    """Hosts that fail, and what the ledger needs to know of it."""

    here: World
    dice: random.Random
    recovery_s: float
    asked: dict[str, int] = field(default_factory=dict)
    memberships: list[Membership] = field(default_factory=list)
    orders: list[float] = field(default_factory=list)
    hung: int = 0
    resumed_s: float = 0.0
    hosts: int = HOSTS

    def at_s(self) -> float:
        return (self.here.now - START).total_seconds()

    def go(self, to_s: float) -> None:
        self.here.now = max(self.here.now, START + timedelta(seconds=to_s))
        while self.orders and self.orders[0] <= to_s:
            self.orders.pop(0)
            self.hosts += 1
            self.here.add_node(f"n{self.hosts}")

    def look(self) -> None:
        """The plan acts; what it has published forms after the time that a recovery takes."""
        for action in self.here.look():
            if isinstance(action, Publish):
                self._publish(action)
        for process in self.here.seen.processes:
            self.asked.setdefault(process.id, micros(self.here.now))

    def decide(self) -> None:
        """Half a second a round until another membership has been published and has formed."""
        known = len(self.memberships)
        while len(self.memberships) == known:
            self.look()
            if len(self.memberships) == known:
                self.here.work()
                self.go(self.at_s() + 0.5)
        self.resumed_s = self.at_s() + self.recovery_s
        self.go(self.resumed_s)
        self.memberships[-1] = replace(self.memberships[-1], resumed=micros(self.here.now))
        for _ in range(3):  # new spares warm up meanwhile
            self.here.work()
            self.look()
        assert self.here.seen.state is JobState.TRAINING

    def fail(self, at_s: float) -> None:
        """A rank's host is lost, or hangs and is then given up."""
        self._train(at_s)
        rank = self.dice.randrange(NODES)
        node = self.here.rank(rank).node
        is_hung = self.dice.random() < HANGS
        self.hung += is_hung
        self.go(at_s + (HANG_AFTER_S if is_hung else 0.0))
        self.here.kill_rank(rank)
        self.here.release(node)
        for other in self.dice.sample([one for one in range(NODES) if one != rank], 3):
            self.here.complain(other)
        self.orders.append(self.at_s() + HOST_S)
        self.decide()
        self.here.remove(node)

    def books(self, until_s: float) -> Books:
        self._train(until_s)
        self.go(until_s)
        return book(History(tuple(self._holdings()), tuple(self.memberships)), micros(self.here.now))

    def _train(self, until_s: float) -> None:
        """Steps that were done in the newest membership."""
        each_s = STEP_S + STALL_S / SAVE_EVERY
        count = int(max(0.0, until_s - self.resumed_s) / each_s)
        began = micros(START + timedelta(seconds=self.resumed_s))
        each = round(each_s * 1e6)
        steps = Done(began + count * each, count * each, round(count * STALL_S / SAVE_EVERY * 1e6))
        tally = replace(Tally.of([steps]), steps=count) if count else Tally()
        self.memberships[-1] = replace(self.memberships[-1], tally=tally)

    def _publish(self, action: Publish) -> None:
        now = micros(self.here.now)
        before = self.memberships[-1].nodes if self.memberships else frozenset()
        processes = {process.id: process for process in self.here.seen.processes}
        nodes = frozenset(processes[one].node for one in action.members)
        fresh = [self.asked[one] for one in action.members if processes[one].node not in before]
        evidence = None if action.evidence_at is None else micros(action.evidence_at)
        self.memberships.append(Membership(nodes, now, evidence, min(fresh, default=None), max(fresh, default=None)))

    def _holdings(self) -> list[Holding]:
        ended = (ProcessState.EXITED, ProcessState.LOST)
        return [
            Holding(one.node, self.asked[one.id], micros(one.state_since) if one.state in ended else None, PER_NODE)
            for one in self.here.seen.processes
        ]


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("EVERSTEP_TEST_SEED", random.SystemRandom().randrange(2**32)))


LLAMA, RSC = FAULTS_PER_NODE_DAY
MEASURED, PUBLISHED = RECOVERY_S


@pytest.mark.parametrize(
    ("faults", "recovery"),
    [
        (LLAMA, MEASURED),
        pytest.param(LLAMA, PUBLISHED, marks=pytest.mark.slow),
        pytest.param(RSC, MEASURED, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(RSC, PUBLISHED, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_2304_accelerators_train_for_95_percent_of_two_weeks_of_faults(faults: str, recovery: str, seed: int):
    dice = random.Random(seed)
    fleet = Fleet(world(nodes=HOSTS, replicas=NODES, spares=SPARES), dice, RECOVERY_S[recovery])
    fleet.decide()
    every_s = 86_400 / (FAULTS_PER_NODE_DAY[faults] * NODES)
    count, next_s = 0, dice.expovariate(1 / every_s)
    while next_s < DAYS * 86_400:
        fleet.fail(max(next_s, fleet.at_s()))
        count, next_s = count + 1, next_s + dice.expovariate(1 / every_s)
    found = fleet.books(DAYS * 86_400)
    shares = {account.value: f"{found.of(account) / found.held:.3%}" for account in Account if found.of(account)}
    print(
        f"seed {seed}: {faults}; {recovery}: {count} faults, one in {every_s / 3600:.1f} h; goodput {found.goodput:.3%}; {shares}"
    )
    assert count >= 5
    assert found.goodput is not None
    assert found.goodput >= 0.95
    assert (found.of(Account.DETECT) > 0) is (fleet.hung > 0)
