"""Facts of processes that live and yet are no use to their job. As in ``reports``: each may come twice, late, or out of order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from models.events import Level
from models.job import queries
from models.job.changes import record
from models.job.stragglers import are_replaced
from models.job.table import Job, JobProcess
from models.move import wake

_LONGEST_STACK = 12_000


@dataclass(frozen=True)
class Hang:
    """No progress for ``seconds`` at a step of a generation; ``how``: computing, waiting or frozen."""

    generation: int
    step: int
    how: str
    seconds: float
    limit_s: float
    stack: str


@dataclass(frozen=True)
class Lag:
    """What a slow rank needs for its own part of a step, and what the others need; also once it ``has_caught_up``."""

    generation: int
    step: int
    own_s: float
    others_s: float
    steps: int
    has_caught_up: bool = False


@dataclass(frozen=True)
class Anomaly:
    """A loss that looked wrong, and what the ranks do about it."""

    generation: int
    step: int
    what: str
    action: str
    words: str


def report_hung(session: Session, process_id: str, hang: Hang, *, now: datetime) -> None:
    """What was told of a later generation, or of a longer time in the same, stays.

    That a rank waits is no event: where one hangs, all the others do.
    """
    job, process = queries.reporting(session, process_id)
    if job is None or process is None or _age(process.hang) >= (hang.generation, hang.step, hang.seconds):
        return
    is_new = _age(process.hang)[:2] != (hang.generation, hang.step)
    known = process.hang
    is_same = known is not None and not is_new and known["how"] == hang.how
    since = known["since"] if known is not None and is_same else now.isoformat()
    process.hang = {**asdict(hang), "stack": hang.stack[:_LONGEST_STACK], "at": now.isoformat(), "since": since}
    wake(session, job, now=now)
    if is_new and hang.how != "waiting":
        words = f"{_who(process)} has made no progress for {hang.seconds:.0f} s at step {hang.step} and is {hang.how}."
        record(session, job, f"process {hang.how}", words, now, level=Level.WARN, details={"stack": process.hang["stack"]})


def report_straggler(session: Session, process_id: str, lag: Lag, *, now: datetime) -> None:
    """An event, and the job's plan looks at it where the job file has slow ranks replaced. What was told of a later step stays."""
    job, process = queries.reporting(session, process_id)
    known = process.lag if process is not None else None
    if job is None or process is None or (known and (known["generation"], known["step"]) >= (lag.generation, lag.step)):
        return
    rank = _rank_in(session, job, lag.generation, process)
    process.lag = {**asdict(lag), "rank": rank}
    if are_replaced(job.spec):
        wake(session, job, now=now)
    who = _who(process) if rank is None else f"Rank {rank}"
    takes = f"it needs {lag.own_s * 1000:.0f} ms for its part of a step, they need {lag.others_s * 1000:.0f} ms"
    details = {**asdict(lag), "node": process.node_id}
    if lag.has_caught_up:
        words = f"{who} does not hold the others up any more: {takes}."
        record(session, job, "straggler caught up", words, now, details=details)
        return
    words = f"{who} holds the others up: {takes}, in most of the last {lag.steps} steps."
    record(session, job, "straggler", words, now, level=Level.WARN, details=details)


def report_anomaly(session: Session, process_id: str, anomaly: Anomaly, *, now: datetime) -> None:
    """An event; the ranks have decided already."""
    job, process = queries.reporting(session, process_id)
    if job is None or process is None:
        return
    record(session, job, f"loss {anomaly.what}", anomaly.words[:600], now, level=Level.WARN, details=asdict(anomaly))


def _who(process: JobProcess) -> str:
    return f"A spare ({process.id})" if process.rank is None else f"Rank {process.rank}"


def _rank_in(session: Session, job: Job, number: int, process: JobProcess) -> int | None:
    """What it had in that generation: it may have another one by now, or none."""
    generation = queries.generation(session, job.id, number)
    members = [] if generation is None else generation.members
    return members.index(process.id) if process.id in members else None


def _age(known: dict[str, Any] | None) -> tuple[int, int, float]:
    return (known["generation"], known["step"], known["seconds"]) if known else (-1, -1, -1.0)
