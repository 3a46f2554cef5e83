"""A spot job on a trace with five reclaims an hour, in virtual time: it finishes, and what it cost is what a hand adds up.

A third of the reclaims come without a notice. A failed run prints its seed; ``WALK_SEED`` repeats it.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal

import pytest

from api.auth import Caller
from api.operations import spot
from api.operations.work import Work
from models.job.states import JobState
from models.node import queries as nodes
from models.node.states import NodeState
from models.notify import NUDGE
from models.session import unit_of_work
from models.spot.changes import Told, report_notice
from models.spot.ledger import shown
from models.spot.states import NoticeKind
from tests import rows
from tests.workers.small_plane import SmallPlane
from workers import prices
from workers.providers.base import HostRef, HostSeen, HostSpec
from workers.providers.prices import ListPrices, TraceFile
from workers.providers.simulated import SimulatedProvider

SEED = int(os.environ.get("WALK_SEED", "5").split()[0])
TYPE, LIST_PRICE = "ml.g5.8xlarge", Decimal("2.448")
TRACE = ((-120, "0.7344"), (4, "0.8123"), (11, "0.9477"), (19, "0.6999"), (33, "1.1111"), (47, "0.7070"))
"""Minutes and dollars an hour."""
RECLAIMS_AN_HOUR = 5


@dataclass
class Billed(SimulatedProvider):
    """Keeps its own books: when each host was launched, and when it was gone."""

    books: dict[str, list[datetime]] = field(default_factory=dict)

    def launch(self, spec: HostSpec) -> HostSeen:
        host = super().launch(spec)
        self.books.setdefault(spec.claim, [self.now()])
        return host

    def release(self, ref: HostRef) -> None:
        super().release(ref)
        self.books[ref.claim].append(self.now())


class Run:
    def __init__(self, sessions, ear, tmp_path) -> None:
        provider = Billed()
        self.plane = SmallPlane(sessions, ear, provider=provider)
        self.provider = provider
        provider.now = self.plane.clock.now
        self.dice = random.Random(SEED)
        self.source = TraceFile(self._trace(tmp_path), ListPrices({TYPE: LIST_PRICE}))
        wire = {"InstanceGroupName": "spot", "InstanceType": TYPE, "InstanceCount": 4, "CapacityRequirements": {"Spot": {}}}
        group = rows.group_spec("spot", 4, instance_type=TYPE, spec=wire)
        with unit_of_work(sessions) as session:
            self.cluster_id = rows.cluster(session, groups=(group,), is_continuous=True).id
        self.pass_time(10)
        self.job_id = self.plane.job(self.cluster_id, replicas=3, spares=1, max_restarts=1000)
        self.until(lambda: self.plane.job_state(self.job_id) is JobState.TRAINING)

    def _trace(self, folder):
        path = folder / "trace.csv"
        lines = [f"{(rows.NOW + timedelta(minutes=minute)).isoformat()},{TYPE},us-east-1a,{price}" for minute, price in TRACE]
        path.write_text("\n".join(["at,instance_type,zone,per_hour", *lines]))
        return path

    def pass_time(self, seconds: float) -> None:
        self.plane.run(seconds, every=5)

    def until(self, claim) -> None:
        for _ in range(100):
            if claim():
                return
            self.pass_time(5)
        raise AssertionError(self.plane.states())

    def reclaim(self, *, with_notice: bool) -> None:
        """The provider takes a host on which a rank runs: after a notice of ten seconds here, or at once."""
        members = self.plane.members(self.job_id)
        victim = self.plane.node(self.dice.choice(members).node_id)
        if with_notice:
            deadline = self.plane.clock.at + timedelta(seconds=10)
            with unit_of_work(self.plane.sessions) as session:
                node = nodes.get(session, victim.id, lock=True)
                told = Told(NoticeKind.INTERRUPTION, self.plane.clock.at, deadline, "imds")
                report_notice(session, node, told, now=self.plane.clock.at)
            self.pass_time(10)
        if victim.id in {host.claim for host in self.provider.hosts()}:
            self.plane.die(victim.instance_id)
            witness = next(process for process in members if process.node_id != victim.id)
            self.plane.complain(witness.id)
        self.until(self.is_whole)

    def is_whole(self) -> bool:
        held = self.plane.states()["node"]
        return self.plane.job_state(self.job_id) is JobState.TRAINING and held == ["ready"] * 4

    def savings(self, **wanted) -> spot.Savings:
        now = self.plane.clock.at
        with unit_of_work(self.plane.sessions) as session:
            return spot.savings(Work(session, now, "us-east-1", Caller("123456789012", "test")), spot.Wanted(**wanted))

    def by_hand(self) -> Decimal:
        """Every second of every host at the price of that second, added up one by one."""
        total = Decimal(0)
        for begun, *ended in self.provider.books.values():
            end = ended[0] if ended else self.plane.clock.at
            half_seconds = int((end - begun) / timedelta(seconds=0.5))
            total += sum((self.price(begun + timedelta(seconds=0.5) * one) for one in range(half_seconds)), Decimal(0))
        return total / 7200

    def price(self, moment: datetime) -> Decimal:
        return next(Decimal(price) for minute, price in reversed(TRACE) if rows.NOW + timedelta(minutes=minute) <= moment)


def run_trace(here: Run, minutes: int) -> None:
    reclaims = RECLAIMS_AN_HOUR * minutes // 60
    end = here.plane.clock.at + timedelta(minutes=minutes)
    for number in range(reclaims):
        here.pass_time(here.dice.uniform(10, 20))
        here.reclaim(with_notice=number % 3 != 1)
        prices.collect(here.plane.sessions, here.plane.clock, here.source)
        here.plane.clock.at += (end - here.plane.clock.at) / (reclaims - number + 1)  # nobody works meanwhile, hosts cost on
        here.plane.listen()
        here.until(here.is_whole)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("minutes", [24, pytest.param(60, marks=pytest.mark.slow)])
def test_a_spot_job_on_a_trace_of_reclaims_finishes_and_costs_what_a_hand_adds_up_to_the_cent(sessions, listen, tmp_path, minutes):
    print(f"WALK_SEED={SEED}")
    here = Run(sessions, listen(NUDGE), tmp_path)
    run_trace(here, minutes)
    here.plane.finish(here.job_id)
    here.until(lambda: here.plane.job_state(here.job_id) is JobState.SUCCEEDED)
    prices.collect(here.plane.sessions, here.plane.clock, here.source)
    found = here.savings(cluster="c1")
    hours = found.total.spot_us / 3_600_000_000
    cent = Decimal("0.01")
    assert found.total.unpriced_us == 0
    assert shown(found.total.spot).quantize(cent, ROUND_HALF_UP) == here.by_hand().quantize(cent, ROUND_HALF_UP)
    assert found.total.listed == hours * 2448 / 1000
    assert 0 < found.total.saved == found.total.listed - found.total.spot
    assert found.taken == RECLAIMS_AN_HOUR * minutes // 60
    by_job = here.savings(job_id=here.job_id)
    assert 0 < by_job.total.spot <= found.total.spot
    assert all(node.state is NodeState.READY for node in here.plane.nodes(here.cluster_id))
    print(f"{found.nodes} hosts, {found.taken} taken, ${shown(found.total.spot, 2)} spent, ${shown(found.total.saved, 2)} saved")
