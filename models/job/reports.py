"""What agents report of a job's processes. Facts only: each wakes the job, whose plan concludes.

Every report may come twice, late, after one that was told later, or about a process that has been given up. What was learned once is not
learned again, nothing goes backwards, and the rows end the same whatever the order (tests/models/job/test_report_orders.py).
Locks are taken in the order job, process, generation: the reconciler does the same, so the two cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.events import Level
from models.job import booking, queries
from models.job.booking import Committed
from models.job.changes import record
from models.job.plain import is_plain
from models.job.states import PROCESS, ProcessState
from models.job.table import Generation, Job, JobProcess, Step
from models.move import advance, wake
from models.session import locked

_COURSE = (ProcessState.WANTED, ProcessState.STARTED, ProcessState.READY, ProcessState.FINISHED, ProcessState.EXITED)
"""The way of a process as it is reported. Being called back is a conclusion: a late READY must not undo FINISHED."""


@dataclass(frozen=True)
class Reform:
    """How a process found its state when it joined a generation; ``copies`` of each part of it live, so that ``worst_loss`` steps can be lost at most."""

    generation: int
    rank: int
    step: int
    source: str
    bytes_moved: int
    phases: Mapping[str, float]
    copies: int | None = None
    worst_loss: int | None = None


def report_process(session: Session, process_id: str, new: ProcessState, *, now: datetime, **facts: Any) -> None:
    """A process has started, is ready, or has exited; ``facts`` are columns of the process (pid, exit_code, signal, tail, failure).

    A fact that is known already stays as it was first told.
    """
    job, process = queries.reporting(session, process_id)
    if job is None or process is None:
        if new is ProcessState.EXITED:
            _note_late_exit(session, process_id, facts, now)
        return
    news = {name: value for name, value in facts.items() if value is not None and getattr(process, name) is None}
    for name, value in news.items():
        setattr(process, name, value)
    if _reach(process, new, now) or news:
        wake(session, job, now=now)


def report_broken(session: Session, process_id: str, generation: int, *, message: str, now: datetime) -> None:
    """A collective of the job's current generation failed in this process, while it lived."""
    job, process = queries.reporting(session, process_id)
    if job is None or process is None or generation != job.generation or generation <= process.broken:
        return
    process.broken = generation
    process.broken_at = now
    wake(session, job, now=now)
    record(session, job, "collective broken", f"Rank {process.rank}: {message[:300]}", now, level=Level.WARN)


def report_cut(session: Session, process_id: str, *, why: str, now: datetime) -> None:
    """The process was ended because it had not left its node in time, also if it did not count any more. Its exit is told apart from that."""
    process = session.get(JobProcess, process_id)
    if process is None:
        return
    job = queries.get(session, process.job_id, lock=True)
    whose = "A spare" if process.rank is None else f"Rank {process.rank}"
    record(
        session,
        job,
        "process cut",
        f"{whose} ({process.id}) had not left its node in time and was ended: {why}",
        now,
        level=Level.WARN,
    )


def report_reformed(session: Session, process_id: str, reform: Reform, *, now: datetime) -> None:
    """A member has joined a generation and holds its state. The last one to say so closes the forming, and wakes the job: before that nothing is new.

    A word of an older generation may tell of the one process that holds the state.
    """
    job, process = queries.reporting(session, process_id)
    if job is None or process is None:
        return
    generation = queries.generation(session, job.id, reform.generation, lock=True)
    if generation is None or list(generation.members[reform.rank : reform.rank + 1]) != [process.id]:
        return
    is_first = str(reform.rank) not in generation.reports
    if is_first:
        _join(session, generation, process.id, reform, now)
    if reform.generation > process.reformed:
        process.reformed = reform.generation
        process.step = reform.step
        _reach(process, ProcessState.READY, now)
    if is_first and (generation.formed_at is not None or generation.number < job.generation):
        wake(session, job, now=now)


def report_progress(session: Session, job_id: str, generation_number: int, steps: Sequence[Committed]) -> None:
    """Steps that rank 0 has committed. The number is the key: a step that is told twice, or done again, is counted once, as it was first done."""
    job = session.scalars(locked(select(Job).where(Job.id == job_id))).one_or_none()
    generation = queries.generation(session, job_id, generation_number, lock=True)
    if job is None or generation is None or not steps:
        return
    fresh = booking.insert_steps(session, job, generation, steps)
    job.productive_s += sum(step.seconds for step in fresh)
    corrected = booking.correct_steps(session, job, generation, steps, fresh) if len(fresh) < len(steps) else False
    job.step = max([job.step, *(step.number + 1 for step in fresh)])
    if corrected or any(step.loss is not None for step in fresh):
        job.loss_first, job.loss_last = _outer_losses(session, job)
    _note_steps(session, job, generation, steps)
    session.flush()


def report_finished(session: Session, process_id: str, generation: int, *, step: int, digest: str | None, now: datetime) -> None:
    """A member has done all its steps and waits to be dismissed."""
    job, process = queries.reporting(session, process_id)
    if job is None or process is None or generation != job.generation:
        return
    process.reformed = max(process.reformed, generation)
    process.step = step
    process.digest = digest
    if _reach(process, ProcessState.FINISHED, now):
        wake(session, job, now=now)


def report_failed(session: Session, process_id: str, *, traceback: str, now: datetime) -> None:
    """User code raised in this process, which exits next. That of the rank that failed first is the job's failure, if it comes to that."""
    job, process = queries.reporting(session, process_id)
    if job is None or process is None or process.failure is not None:
        return
    process.failure = traceback
    wake(session, job, now=now)
    last_line = (traceback.strip().splitlines() or ["no traceback"])[-1]
    record(session, job, "user code failed", f"Rank {process.rank}: {last_line[:300]}", now, level=Level.ERROR)


def report_raised(session: Session, process_id: str, generation: int, *, traceback: str, now: datetime) -> None:
    """User code raised in this process, which lives on and waits for a generation to try again in. Counts once a generation."""
    job, process = queries.reporting(session, process_id)
    if job is None or process is None:
        return
    before = process.raised or {"generations": [], "at": [], "words": ""}
    times = dict(zip(before["generations"], before["at"], strict=True))
    if generation in times:
        return
    words = traceback if generation > max(times, default=0) else before["words"]
    times = dict(sorted({**times, generation: now.isoformat()}.items()))
    process.raised = {"generations": [*times], "at": [*times.values()], "words": words}
    wake(session, job, now=now)
    last_line = (traceback.strip().splitlines() or ["no traceback"])[-1]
    words = f"Rank {process.rank}, which lives on: {last_line[:300]}"
    record(session, job, "user code raised", words, now, level=Level.ERROR, details={"traceback": traceback[-8000:]})


def report_device_fault(session: Session, process_id: str, *, text: str, now: datetime) -> None:
    """An accelerator's driver has named this process. Its job is told which rank that is; how the process ends is another report's to say."""
    job, process = queries.reporting(session, process_id)
    if job is None or process is None:
        return
    who = f"Rank {process.rank}" if process.rank is not None else "A spare"
    process.device_fault = f"{who}: {text}"
    record(session, job, "accelerator fault", process.device_fault[:600], now, level=Level.WARN)
    session.flush()


def _note_late_exit(session: Session, process_id: str, facts: Mapping[str, Any], now: datetime) -> None:
    """How a process ended that had been given up. It counts for nothing, but the next generation of a plain job waits until its nodes are left."""
    job_id = session.scalar(select(JobProcess.job_id).where(JobProcess.id == process_id))
    if job_id is None:
        return
    job = queries.get(session, job_id, lock=True)
    process = session.scalars(locked(select(JobProcess).where(JobProcess.id == process_id))).one()
    if is_plain(job.spec) and process.exit_code is None and process.signal is None:
        process.exit_code, process.signal = facts.get("exit_code"), facts.get("signal")
        wake(session, job, now=now)


def _reach(process: JobProcess, new: ProcessState, now: datetime) -> bool:
    """Moves a process forward to a state. False if it has been there, or further, already."""
    if _COURSE.index(new) <= _COURSE.index(process.state):
        return False
    if new is ProcessState.FINISHED and process.state is not ProcessState.READY:
        advance(PROCESS, process, ProcessState.READY, now=now)
    advance(PROCESS, process, new, now=now)
    return True


def _join(session: Session, generation: Generation, process_id: str, reform: Reform, now: datetime) -> None:
    told = {
        "process": process_id,
        "source": reform.source,
        "bytes_moved": reform.bytes_moved,
        "step": reform.step,
        "phases": dict(reform.phases),
    }
    told |= {} if reform.copies is None else {"copies": reform.copies, "worst_loss": reform.worst_loss}
    generation.reports = {**generation.reports, str(reform.rank): told}
    # A member that rolls forward tells the step that it is about to finish; those who hold it already tell the next.
    generation.step = max(reform.step, generation.step or 0)
    if len(generation.reports) == len(generation.members):
        generation.formed_at = now
        _count_losses(session, generation.job_id)


def _note_steps(session: Session, job: Job, generation: Generation, steps: Sequence[Committed]) -> None:
    """When a generation's first step was committed, and how far it came."""
    if generation.step is None and is_plain(job.spec):
        generation.step = min(
            step.number for step in steps
        )  # its processes do not say from where they go on: their first step does
        generation.formed_at = generation.formed_at or min(step.at for step in steps)
        _count_losses(session, job.id)
    # A step rolled forward in the reform is told by the new generation, but is no step of its training.
    own = [step.at for step in steps if generation.step is None or step.number >= generation.step]
    if own:
        generation.first_step_at = min([*own, *([generation.first_step_at] if generation.first_step_at else [])])
    generation.reached = max([generation.reached or 0, *(step.number + 1 for step in steps)])
    if generation.number < job.generation:
        _count_losses(session, job.id)


def _count_losses(session: Session, job_id: str) -> None:
    """How many committed steps each generation has to do again: where those before it came, less where it goes on.

    Told from the generations alone, because reports of an old generation may come after the new one has formed.
    """
    session.flush()
    position = 0
    for generation in queries.generations(session, job_id):
        if generation.formed_at is not None and generation.step is not None:
            generation.steps_lost = max(0, position - generation.step)
            position = generation.step
        position = max(position, generation.reached or 0)


def _outer_losses(session: Session, job: Job) -> tuple[float | None, float | None]:
    """The losses of the first and of the newest step that told one."""
    known = select(Step.loss).where(Step.job_id == job.id, Step.loss.is_not(None)).limit(1)
    return session.scalar(known.order_by(Step.number)), session.scalar(known.order_by(Step.number.desc()))
