"""Nodes' reports beside whatever else locks the same rows: nobody waits for somebody who waits for him."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from api.auth import Caller
from api.operations import checkpoints
from api.operations.reports import BadReport, Sequenced, accept
from api.operations.work import Work
from everstep.tiers import CopiesReport, CopyStatus, CopyTold, DurableReport, SavedReport
from models.checkpoint import changes, queries
from models.checkpoint.states import StepState
from models.errors import DomainError
from models.job.changes import settle_processes
from models.node import queries as nodes
from models.session import Sessions, unit_of_work
from tests import rows

SEEDS = (1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 33)))
NODES = 4
STEPS = range(1, 7)
ROUNDS = 25
Turn = Callable[[Session, random.Random, int], None]


@pytest.mark.parametrize("seed", SEEDS)
def test_reports_deletions_retention_and_losses_of_nodes_never_wait_in_a_circle(sessions: Sessions, seed: int):
    world = World(sessions)
    turns: list[Turn] = [partial(world.report, place) for place in range(NODES)]
    turns += [world.ask, world.ask, world.retain, world.lose]
    print(f"seed {seed}")
    circles: list[str] = []

    def run(number: int, turn: Turn) -> None:
        dice = random.Random(f"{seed}/{number}")
        for count in range(ROUNDS):
            try:
                with unit_of_work(sessions) as session:
                    turn(session, dice, count)
            except DomainError:
                pass  # a refusal, in words
            except OperationalError as error:
                circles.append(str(error.orig))

    threads = [threading.Thread(target=run, args=(number, turn)) for number, turn in enumerate(turns)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert not [thread for thread in threads if thread.is_alive()]
    assert not circles


class World:
    """Two jobs on the same nodes, each with a namespace of its own."""

    def __init__(self, sessions: Sessions) -> None:
        with unit_of_work(sessions) as session:
            cluster = rows.cluster(session, is_continuous=True)
            made = rows.nodes(session, cluster, NODES)
            places = [(node.id, 0) for node in made]
            self.jobs = []
            for name in ("one", "two"):
                spec = {"command": ["x"], "checkpoint": {"namespace": name}}
                job = rows.job(session, cluster, name, spec=spec, replicas=NODES)
                rows.namespace(session, job, name)
                settle_processes(session, job, places, now=rows.NOW)
                self.jobs.append((job.id, name))
            self.tokens = [(node.id, f"token-{node.id}") for node in made]

    def report(self, place: int, session: Session, dice: random.Random, count: int) -> None:
        """A batch as it comes after a reconnection: several steps of several namespaces, in any order."""
        batch = [self._one(dice, count) for _ in range(6)]
        told = [Sequenced(count * 100 + number, report) for number, report in enumerate(batch, start=1)]
        accept(session, self.tokens[place][1], "boot-1", told, now=rows.NOW)

    def ask(self, session: Session, dice: random.Random, _: int) -> None:
        """What callers do."""
        work = Work(session, rows.NOW, "us-east-1", Caller(name="ann", account_id="1"))
        job_id, step = dice.choice(self.jobs)[0], dice.choice(STEPS)
        match dice.randrange(3):
            case 0:
                checkpoints.delete(work, job_id, step)
            case 1:
                checkpoints.pin(work, job_id, step, is_pinned=dice.random() < 0.5)
            case _:
                checkpoints.export(work, job_id, step, checkpoints.ExportFormat.DCP, target=None)

    def retain(self, session: Session, dice: random.Random, _: int) -> None:
        """What workers conclude."""
        name = dice.choice(self.jobs)[1]
        row = queries.find(session, name, dice.choice(STEPS), lock=True)
        if row is not None and row.state is StepState.DROPPING:
            changes.settle_dropped(session, row, now=rows.NOW)
        elif row is not None:
            changes.settle_dropping(session, row, why="old", now=rows.NOW)
        changes.settle_fault_rate(session, name, dice.random(), now=rows.NOW)
        if dice.random() < 0.5:
            changes.settle_forgotten(session, name, now=rows.NOW + 2 * changes.FORGOTTEN_AFTER)

    def lose(self, session: Session, dice: random.Random, _: int) -> None:
        node = nodes.get(session, dice.choice(self.tokens)[0], lock=True)
        changes.settle_lost_copies(session, node.id, now=rows.NOW)

    def _one(self, dice: random.Random, count: int) -> CopiesReport | DurableReport | SavedReport:
        job_id, name = dice.choice(self.jobs)
        step, save, at = dice.choice(STEPS), f"save-{count % 3}", rows.NOW.timestamp() - 1000 + count + dice.random()
        match dice.randrange(4):
            case 0:
                return DurableReport(name, step, 2, save=save, nbytes=100, is_withdrawn=dice.random() < 0.3, at=at)
            case 1:
                return SavedReport(job_id, count, 0.1, 0.2, 100, why=f"round {count}")
            case _:
                status = dice.choice((CopyStatus.SEALED, CopyStatus.SEALED, CopyStatus.DROPPED))
                copies = tuple(CopyTold(index, status, 100, "d") for index in range(3))
                return CopiesReport(name, step, copies, save=save, world_size=2, written_at=at, at=at)


@pytest.mark.parametrize(
    "report",
    [
        CopiesReport("one", 5, (CopyTold(0, CopyStatus.SEALED, 1, "d"),), at=1e300),
        CopiesReport("one", 5, (CopyTold(0, CopyStatus.SEALED, 1, "d"),), written_at=float("nan")),
        CopiesReport("one", 2**70, (CopyTold(0, CopyStatus.SEALED, 1, "d"),), at=1.0),
        DurableReport("one", 2**70, 2, nbytes=1, at=1.0),
    ],
)
def test_a_report_that_cannot_be_applied_is_named_among_those_that_are_held_together(sessions: Sessions, report: CopiesReport):
    world = World(sessions)
    good = DurableReport("one", 4, 2, save="a", nbytes=1, at=rows.NOW.timestamp())
    with pytest.raises(BadReport, match="sequence 2"), unit_of_work(sessions) as session:
        accept(session, world.tokens[0][1], "boot-1", [Sequenced(1, good), Sequenced(2, report)], now=rows.NOW)
