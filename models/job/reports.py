"""What agents report of a job's processes. Facts only: each wakes the job, whose plan concludes.

Every report may come twice, late, or about a process that no longer counts; all of that changes nothing.
Locks are taken in the order job, process: the reconciler does the same, so the two cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.job import queries
from models.job.changes import record
from models.events import Level
from models.job.states import PROCESS, ProcessState
from models.job.table import Generation, Job, JobProcess, Step
from models.move import advance, wake


@dataclass(frozen=True)
class Reform:
    """How a process found its state when it joined a generation."""

    generation: int
    rank: int
    step: int
    source: str
    bytes_moved: int
    phases: Mapping[str, float]


@dataclass(frozen=True)
class Committed:
    """A step that rank 0 has committed."""

    number: int
    loss: float | None
    seconds: float
    at: datetime


def report_process(session: Session, process_id: str, new: ProcessState, *, now: datetime, **facts: Any) -> None:
    """A process has started, is ready, or has exited; ``facts`` are columns of the process (pid, exit_code, signal, tail)."""
    job, process = _lock(session, process_id)
    if job is None or process is None or new not in PROCESS.next(process.state):
        return
    for name, value in facts.items():
        setattr(process, name, value)
    advance(PROCESS, process, new, now=now)
    wake(session, job, now=now)


def report_broken(session: Session, process_id: str, generation: int, *, message: str, now: datetime) -> None:
    """A collective of the generation failed in this live process."""
    job, process = _lock(session, process_id)
    if job is None or process is None or generation <= process.broken or process.state not in PROCESS.live:
        return
    process.broken = generation
    process.broken_at = now
    wake(session, job, now=now)
    record(session, job, "collective broken", f"Rank {process.rank}: {message[:300]}", now, level=Level.WARN)


def report_reformed(session: Session, process_id: str, reform: Reform, *, now: datetime) -> None:
    """A process has joined a generation and holds its state. The last one to say so closes the forming."""
    job, process = _lock(session, process_id)
    if job is None or process is None or reform.generation <= process.reformed or process.state not in PROCESS.live:
        return
    process.reformed = reform.generation
    process.step = reform.step
    generation = queries.generation(session, job.id, reform.generation, lock=True)
    if generation is not None:
        generation.reports = {
            **generation.reports,
            str(reform.rank): {
                "process": process.id,
                "source": reform.source,
                "bytes_moved": reform.bytes_moved,
                "step": reform.step,
                "phases": dict(reform.phases),
            },
        }
        if len(generation.reports) == len(generation.members) and generation.formed_at is None:
            _close_forming(job, generation, now)
    wake(session, job, now=now)


def report_progress(session: Session, job_id: str, generation_number: int, steps: Sequence[Committed]) -> None:
    """Steps that rank 0 has committed. The number is the key: a step that is told twice is counted once."""
    job = session.scalars(select(Job).where(Job.id == job_id).with_for_update(key_share=True)).one_or_none()
    if job is None or not steps:
        return
    fresh = _insert_steps(session, job, generation_number, steps)
    generation = queries.generation(session, job_id, generation_number)
    if generation is not None and generation.first_step_at is None:
        in_it = [step.at for step in steps if generation.step is None or step.number >= generation.step]
        generation.first_step_at = min(in_it, default=None)
    if fresh:
        job.productive_s += sum(step.seconds for step in fresh)
        job.step = max(job.step, fresh[-1].number + 1)
        known = [step.loss for step in fresh if step.loss is not None]
        if known:
            job.loss_first = known[0] if job.loss_first is None else job.loss_first
            job.loss_last = known[-1]
    session.flush()


def report_finished(session: Session, process_id: str, generation: int, *, step: int, digest: str | None, now: datetime) -> None:
    """A member has done all its steps and waits to be dismissed."""
    job, process = _lock(session, process_id)
    if job is None or process is None or process.state is not ProcessState.READY or generation != job.generation:
        return
    process.step = step
    process.digest = digest
    advance(PROCESS, process, ProcessState.FINISHED, now=now)
    wake(session, job, now=now)


def report_failed(session: Session, process_id: str, *, traceback: str, now: datetime) -> None:
    """User code raised in this process, which exits next. The first traceback of a job is its failure, if it comes to that."""
    job, process = _lock(session, process_id)
    if job is None or process is None or process.failure is not None:
        return
    process.failure = traceback
    wake(session, job, now=now)
    record(
        session, job, "user code failed", f"Rank {process.rank}: {traceback.strip().splitlines()[-1][:300]}", now, level=Level.ERROR
    )


def _lock(session: Session, process_id: str) -> tuple[Job, JobProcess] | tuple[None, None]:
    """The process and its job, both locked; nothing if the process was never wanted."""
    job_id = session.scalar(select(JobProcess.job_id).where(JobProcess.id == process_id))
    if job_id is None:
        return None, None
    job = queries.get(session, job_id, lock=True)
    process = session.scalars(select(JobProcess).where(JobProcess.id == process_id).with_for_update(key_share=True)).one()
    session.refresh(process)
    return job, process


def _close_forming(job: Job, generation: Generation, now: datetime) -> None:
    generation.formed_at = now
    generation.step = max(int(report["step"]) for report in generation.reports.values())
    generation.steps_lost = max(0, job.step - generation.step)


def _insert_steps(session: Session, job: Job, generation: int, steps: Sequence[Committed]) -> list[Committed]:
    """Inserts the steps that are new and returns them, in order."""
    rows = [
        {
            "job_id": job.id,
            "number": step.number,
            "generation": generation,
            "loss": step.loss,
            "seconds": step.seconds,
            "at": step.at,
        }
        for step in {step.number: step for step in steps}.values()
    ]
    inserted = set(session.scalars(insert(Step).values(rows).on_conflict_do_nothing().returning(Step.number)))
    return sorted((step for step in steps if step.number in inserted), key=lambda step: step.number)
