"""A job's rows as the history that its time is booked from."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.orm import Session

from models.cluster.table import Cluster
from models.job import changes, queries, reports
from models.job.accounts import books, history
from models.job.ledger import Account
from models.job.reports import Committed, Reform
from models.job.states import JobState, ProcessState
from models.job.table import Job, JobProcess
from tests import rows

NOW = rows.NOW


def later(seconds: float):
    return NOW + timedelta(seconds=seconds)


def reformed(session: Session, generation: int, rank: int, process: JobProcess, at: float, source: str) -> None:
    phases = {"grouped": (later(at - 0.5)).timestamp(), "transferred": later(at).timestamp()}
    told = Reform(generation=generation, rank=rank, step=4 if generation > 1 else 0, source=source, bytes_moved=0, phases=phases)
    reports.report_reformed(session, process.id, told, now=later(at))


def steps(session: Session, job: Job, generation: int, first: int, count: int, began: float) -> None:
    told = [Committed(first + index, None, 1.0, later(began + index + 1), 0.25) for index in range(count)]
    reports.report_progress(session, job.id, generation, told)


def trained(session: Session) -> Job:
    """Two ranks and a spare: four steps from the 5th second on, a kill at 9.5, seen at 10, the spare's membership at 11, state at 13, two steps."""
    job = rows.job(session, rows.cluster(session))
    places = [(node.id, 0) for node in rows.nodes(session, session.get_one(Cluster, job.cluster_id), 3)]
    dead, survivor, spare = made = changes.settle_processes(session, job, places, now=NOW)
    for process in made:
        rows.reach(session, process, ProcessState.READY)
    changes.settle_job(session, job, JobState.FORMING, why="test", now=NOW)
    changes.settle_generation(session, job, [dead, survivor], cause="first", evidence_at=None, now=later(4))
    for rank, process in enumerate((dead, survivor)):
        reformed(session, 1, rank, process, 5, "initial")
    steps(session, job, 1, 0, 4, began=5)
    reports.report_process(session, dead.id, ProcessState.EXITED, now=later(10), signal=9)
    changes.settle_generation(session, job, [spare, survivor], cause="second", evidence_at=later(10), now=later(11))
    for rank, (process, source) in enumerate(((spare, "peer"), (survivor, "kept"))):
        reformed(session, 2, rank, process, 13, source)
    steps(session, job, 2, 4, 2, began=13)
    return job


def test_the_rows_of_a_kill_are_booked_from_the_first_wish_to_the_newest_step(session: Session):
    job = trained(session)
    told = history(job, queries.processes(session, job.id), queries.generations(session, job.id), {})
    assert [len(one.nodes) for one in told.memberships] == [2, 2]
    assert [one.until is None for one in told.holdings].count(False) == 1, "the dead rank's node is held no longer"
    found = books(job, queries.processes(session, job.id), queries.generations(session, job.id), {}, now=later(15))
    seconds = {account.value: found.of(account) / 1e6 for account in Account if found.of(account)}
    assert seconds == {
        "initialising": 3 * 4.0 + 2 * 1.0,
        "productive": 2 * 3.0 + 2 * 1.5,
        "checkpoint_stall": 2 * 1.0 + 2 * 0.5,
        "redone_work": 2 * 1.0,
        "decide": 1.0,
        "reform": 2 * 1.5,
        "transfer": 2 * 0.5,
        "spare": 7.0,
    }
    assert sum(found.accounts) == (10 + 15 + 15) * 1_000_000


def test_a_node_counts_with_its_accelerators_from_its_first_process_to_its_last(session: Session):
    job = trained(session)
    processes = queries.processes(session, job.id)
    weights = {process.node_id: 8 for process in processes}
    found = books(job, processes, queries.generations(session, job.id), weights, now=later(15))
    assert found.held == 8 * 40 * 1_000_000
