"""Reads of jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.errors import NotFound
from models.job.states import ALIVE, ENDED, ON_PEERS_WORD, JobState, ProcessState
from models.job.table import Generation, Job, JobProcess, Step
from models.session import locked


def get(session: Session, job_id: str, *, lock: bool = False) -> Job:
    """Raises NotFound."""
    wanted = select(Job).where(Job.id == job_id)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Job", name=job_id)
    return row


def of_cluster(session: Session, cluster_id: str, *, live_only: bool = False) -> list[Job]:
    """A cluster's jobs, oldest first: the order of the queue."""
    wanted = select(Job).where(Job.cluster_id == cluster_id)
    if live_only:
        wanted = wanted.where(Job.state.not_in(ENDED))
    return list(session.scalars(wanted.order_by(Job.created_at, Job.id)))


def processes(session: Session, job_id: str, *, alive_only: bool = False) -> list[JobProcess]:
    """A job's processes, oldest first."""
    wanted = select(JobProcess).where(JobProcess.job_id == job_id)
    if alive_only:
        wanted = wanted.where(JobProcess.state.in_(ALIVE))
    return list(session.scalars(wanted.order_by(JobProcess.created_at, JobProcess.id)))


def reporting(session: Session, process_id: str) -> tuple[Job, JobProcess] | tuple[None, None]:
    """The process and its job, both locked; nothing if the process was never wanted or has been given up."""
    job_id = session.scalar(select(JobProcess.job_id).where(JobProcess.id == process_id))
    if job_id is None:
        return None, None
    job = get(session, job_id, lock=True)
    process = session.scalars(locked(select(JobProcess).where(JobProcess.id == process_id))).one()
    return (None, None) if process.state is ProcessState.LOST else (job, process)


def on_node(session: Session, node_id: str) -> list[JobProcess]:
    """The processes of any job that should be alive on a node."""
    return list(session.scalars(select(JobProcess).where(JobProcess.node_id == node_id, JobProcess.state.in_(ALIVE))))


def were_on(session: Session, node_ids: Collection[str]) -> list[JobProcess]:
    """Every process that these nodes ever had, of the jobs that the caller sees."""
    return list(session.scalars(select(JobProcess).where(JobProcess.node_id.in_(node_ids)).order_by(JobProcess.id)))


def busy_nodes(session: Session, cluster_id: str) -> dict[str, str]:
    """Which nodes of a cluster are held by a job that has not ended: node id → job id."""
    rows = session.execute(
        select(JobProcess.node_id, JobProcess.job_id)
        .join(Job, Job.id == JobProcess.job_id)
        .where(Job.cluster_id == cluster_id, JobProcess.state.in_(ALIVE))
    )
    return {row.node_id: row.job_id for row in rows}


def last_ends(session: Session, nodes: Sequence[str]) -> dict[str, datetime]:
    """When the last process of any job on each node has ended; nodes that have had none are missing."""
    ended = JobProcess.state.not_in(ALIVE)
    wanted = select(JobProcess.node_id, func.max(JobProcess.state_since)).where(JobProcess.node_id.in_(nodes), ended)
    return {row[0]: row[1] for row in session.execute(wanted.group_by(JobProcess.node_id))}


def generations(session: Session, job_id: str) -> list[Generation]:
    return list(session.scalars(select(Generation).where(Generation.job_id == job_id).order_by(Generation.number)))


def generation(session: Session, job_id: str, number: int, *, lock: bool = False) -> Generation | None:
    wanted = select(Generation).where(Generation.job_id == job_id, Generation.number == number)
    return session.scalars(locked(wanted) if lock else wanted).one_or_none()


def steps(session: Session, job_id: str, *, after: int = -1, limit: int = 100_000) -> Sequence[Step]:
    """Committed steps after a number, in order."""
    wanted = select(Step).where(Step.job_id == job_id, Step.number > after)
    return session.scalars(wanted.order_by(Step.number).limit(limit)).all()


def given_up_on(session: Session, node_id: str, *, since: datetime) -> int:
    """How many processes on a node their jobs have given up since a time on their peers' word. Those given up for other reasons do not count."""
    wanted = select(func.count()).where(
        JobProcess.node_id == node_id,
        JobProcess.state == ProcessState.LOST,
        JobProcess.state_since >= since,
        JobProcess.failure == ON_PEERS_WORD,
    )
    return session.scalar(wanted) or 0


@dataclass(frozen=True)
class Stride:
    """The newest step of a job that trains: when it was committed, how long it took, and on which node the rank is that tells of it."""

    teller: str
    at: datetime
    seconds: float


def strides(session: Session, node_id: str) -> list[Stride]:
    """Of the jobs that have a rank on the node. Each step takes all ranks, so it vouches for every one of them."""
    here = select(JobProcess.job_id).where(JobProcess.node_id == node_id, JobProcess.state.in_(ALIVE), JobProcess.rank.is_not(None))
    training = session.scalars(select(Job).where(Job.id.in_(here), Job.state == JobState.TRAINING)).all()
    found = []
    for job in training:
        teller = select(JobProcess.node_id).where(JobProcess.job_id == job.id, JobProcess.rank == 0, JobProcess.state.in_(ALIVE))
        newest = select(Step).where(Step.job_id == job.id, Step.generation == job.generation).order_by(Step.number.desc()).limit(1)
        told_by, step = session.scalars(teller).first(), session.scalars(newest).first()
        if told_by is not None and step is not None:
            found.append(Stride(told_by, step.at, step.seconds))
    return found
