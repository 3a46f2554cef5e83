"""The last lines of a job's processes: kept for people, bounded, never part of a decision."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.ids import ProcessId
from models.job.table import JobProcess, ProcessLog

KEPT = 65_536
"""Characters kept of a process. The whole log is a file on the node."""


def report_log(session: Session, process_id: ProcessId, text: str, *, skipped: int, now: datetime) -> None:
    """Appends what a process has written; ``skipped`` bytes before it were not told. A process that was never wanted is ignored."""
    if session.scalar(select(JobProcess.id).where(JobProcess.id == process_id)) is None:
        return
    log = session.get(ProcessLog, process_id)
    if log is None:
        log = ProcessLog(process_id=process_id, text="", end=0, at=now)
        session.add(log)
    gap = f"[{skipped} bytes left out]\n" if skipped else ""
    log.text = _whole_lines(log.text + gap + text)
    log.end += skipped + len(text.encode("utf-8", "replace"))
    log.at = now
    session.flush()


def of_job(session: Session, job_id: str) -> Sequence[tuple[JobProcess, ProcessLog | None]]:
    """Every process of a job with what is kept of its log, oldest first."""
    wanted = select(JobProcess, ProcessLog).outerjoin(ProcessLog, ProcessLog.process_id == JobProcess.id)
    rows = session.execute(wanted.where(JobProcess.job_id == job_id).order_by(JobProcess.created_at, JobProcess.id))
    return [(row.JobProcess, row.ProcessLog) for row in rows]


def _whole_lines(text: str) -> str:
    """The end of a text, beginning with a whole line where one begins in it."""
    if len(text) <= KEPT:
        return text
    end = text[-KEPT:]
    return end.partition("\n")[2] or end
