"""Writes of jobs: what users ask for and what plans conclude. What agents report is in ``reports``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from models import events
from models.errors import AlreadyExists
from models.events import About, Level
from models.ids import ClusterId, NodeId, new_job_id, new_process_id, new_token
from models.job import queries
from models.job.elastic import elastic_of
from models.job.states import ENDED, JOB, PROCESS, JobState, ProcessState
from models.job.table import Generation, Job, JobProcess
from models.move import advance, move, wake
from models.session import breaks, locked


@dataclass(frozen=True)
class JobSpec:
    """A job as it is wished for. ``spec`` is the job file with its defaults filled in."""

    name: str
    cluster_id: ClusterId
    replicas: int
    processes_per_node: int
    spares: int
    max_restarts: int
    spec: dict[str, Any]
    team: str | None = None

    @property
    def world_size(self) -> int:
        return self.replicas * self.processes_per_node


def request_job(session: Session, wish: JobSpec, *, now: datetime) -> Job:
    """Puts a job into the cluster's queue.

    Raises:
        AlreadyExists: a job of this name has not ended yet in the same cluster.
    """
    job = Job(
        id=new_job_id(),
        name=wish.name,
        cluster_id=wish.cluster_id,
        team=wish.team,
        state=JOB.initial,
        state_since=now,
        spec=wish.spec,
        replicas=wish.replicas,
        wish=wish.replicas,
        processes_per_node=wish.processes_per_node,
        spares=wish.spares,
        max_restarts=wish.max_restarts,
        rendezvous_token=new_token(),
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(job)
    except IntegrityError as error:
        if breaks(error, "uq_job_live_name"):
            raise AlreadyExists(kind="Job", name=wish.name) from error
        raise
    record(session, job, "job submitted", f"Job {job.name} was submitted.", now)
    wake(session, job, now=now)
    return job


def request_stop(session: Session, job: Job, *, now: datetime) -> None:
    """Asks for the end of a locked job. Asking again, or for a job that has ended, changes nothing."""
    if job.stop_requested or job.state in ENDED:
        return
    job.stop_requested = True
    record(session, job, "stop requested", "A stop was requested.", now)
    wake(session, job, now=now)


def request_resize(session: Session, job: Job, replicas: int, *, now: datetime) -> None:
    """Asks for another number of nodes, of a locked job. The caller has checked that it is one of its sizes. Asking again changes nothing."""
    if job.state in ENDED or job.wish == replicas:
        return
    record(session, job, "resize requested", f"Size {replicas} is asked for, instead of {job.wish}.", now)
    job.wish = replicas
    job.wished_at = now
    wake(session, job, now=now)


def settle_spares(session: Session, job: Job, spares: int, *, why: str, now: datetime) -> None:
    """How many spares a locked job is to have from now on."""
    if job.state in ENDED or job.spares == spares:
        return
    job.spares = spares
    record(session, job, "spares sized", why, now)
    wake(session, job, now=now)


def request_surrender(session: Session, job: Job, nodes: int, *, why: str, now: datetime) -> int:
    """Asks a locked job for so many of its nodes, until ``request_lift``. Gives how many it will give: no more than its sizes allow.

    The job trains on with what it keeps, and never falls below its least size.
    """
    policy = elastic_of(job.spec)
    if policy is None or job.state in ENDED or nodes < 1:
        return 0
    held = job.replicas if job.ceiling is None else min(job.replicas, job.ceiling)
    kept = policy.fitting(held - nodes) or policy.least
    if kept >= held:
        return 0
    job.ceiling, job.ceiling_why = kept, why
    record(session, job, "nodes surrendered", f"Keeps {kept} of {held} nodes: {why}", now)
    wake(session, job, now=now)
    return held - kept


def request_lift(session: Session, job: Job, *, now: datetime) -> None:
    """Nobody needs a locked job's nodes any more: it may grow again."""
    if job.ceiling is None:
        return
    job.ceiling = job.ceiling_why = None
    record(session, job, "nodes given back", "Its nodes are not needed elsewhere any more; it may grow again.", now)
    wake(session, job, now=now)


def request_restart_of(session: Session, process: JobProcess, *, why: str, now: datetime) -> None:
    """One process is to start anew, in the same place if it is still good; its rank goes to a spare, if there is one. Locks its job.

    For what strikes a process and neither its node nor its script is to blame for: it costs none of the restarts that a job is allowed.
    Asking again, or for a process that has ended, changes nothing.
    """
    job = session.scalars(locked(select(Job).where(Job.id == process.job_id))).one()
    session.refresh(process)
    if job.state in ENDED or process.state not in PROCESS.live:
        return
    settle_given_up(session, job, process, why=why, now=now)
    wake(session, job, now=now)


def settle_job(session: Session, job: Job, new: JobState, *, why: str, now: datetime) -> None:
    """Concludes a job's state. The caller has checked its lease in this transaction. Ended, its processes are to end as well."""
    if new is JobState.FORMING and job.started_at is None:
        job.started_at = now
    if new in ENDED:
        job.ended_at = now
        job.halted_at = job.halted_at or now
    if new is JobState.EVICTING:
        job.evictions += 1
    if new is JobState.FAILED and job.failure is None:
        job.failure = why
    job.why = why
    move(session, JOB, job, new, now=now)
    level = {JobState.FAILED: Level.ERROR, JobState.RECOVERING: Level.WARN}.get(new, Level.INFO)
    record(session, job, f"job {new}", why, now, level=level)


def settle_processes(session: Session, job: Job, places: Sequence[tuple[NodeId, int]], *, now: datetime) -> list[JobProcess]:
    """Writes the wish for new processes, one for each (node, local rank). They warm up without a rank."""
    wanted = [
        JobProcess(
            id=new_process_id(),
            job_id=job.id,
            node_id=node_id,
            local_rank=local_rank,
            state=PROCESS.initial,
            state_since=now,
            created_at=now,
        )
        for node_id, local_rank in places
    ]
    session.add_all(wanted)
    session.flush()
    return wanted


def settle_given_up(session: Session, job: Job, process: JobProcess, *, why: str, is_planned: bool = False, now: datetime) -> None:
    """The process no longer counts, whatever it still does. ``is_planned``: nothing is lost with it."""
    if process.state not in PROCESS.live:
        return
    advance(PROCESS, process, ProcessState.LOST, now=now)
    process.failure = process.failure or why
    if is_planned:
        record(session, job, "process released", f"{process.id} is not needed any more where it is: {why}", now)
    else:
        record(session, job, "process lost", f"Rank {process.rank} ({process.id}) is given up: {why}", now, level=Level.WARN)


def settle_generation(
    session: Session,
    job: Job,
    members: Sequence[JobProcess],
    *,
    cause: str,
    evidence_at: datetime | None,
    now: datetime,
) -> Generation:
    """Publishes the next membership; ``members`` are ordered by rank. Processes that are no members become spares."""
    _count(session, job, members)
    job.generation += 1
    ranks = {process.id: rank for rank, process in enumerate(members)}
    counted = or_(JobProcess.state.in_(PROCESS.live), JobProcess.id.in_(ranks))
    for process in session.scalars(locked(select(JobProcess).where(JobProcess.job_id == job.id, counted).order_by(JobProcess.id))):
        process.rank = ranks.get(process.id)
        if process.state is ProcessState.FINISHED and process.id in ranks:
            advance(PROCESS, process, ProcessState.READY, now=now)
    generation = Generation(
        job_id=job.id,
        number=job.generation,
        cause=cause,
        members=[process.id for process in members],
        evidence_at=evidence_at,
        decided_at=now,
        reports={},
    )
    session.add(generation)
    session.flush()
    record(
        session, job, "generation published", f"Generation {job.generation}: {cause}", now, details={"members": generation.members}
    )
    return generation


def settle_size(job: Job, replicas: int) -> None:
    """How many nodes the job has, or forms with."""
    job.replicas = replicas


def settle_awaits(job: Job, nodes: int, *, now: datetime) -> None:
    """How many nodes the job has lost and waits for. The wait begins with the first of them."""
    job.awaits_since = (job.awaits_since or now) if nodes else None
    job.awaits = nodes


def settle_formed(session: Session, job: Job, number: int, *, now: datetime) -> None:
    """All processes of a plain job's generation run; what they go on from only they know."""
    generation = session.scalars(locked(select(Generation).where(Generation.job_id == job.id, Generation.number == number))).one()
    if generation.formed_at is None:
        generation.formed_at = now
        record(session, job, "generation formed", f"Generation {number}: all {len(generation.members)} processes run.", now)
    session.flush()


def settle_halt(session: Session, job: Job, *, now: datetime) -> None:
    """Its processes are to end from now on; saying so again changes nothing."""
    job.halted_at = job.halted_at or now
    session.flush()


def settle_restarts(job: Job, restarts: int) -> None:
    """How many processes user code has brought down so far."""
    job.restarts = restarts


def settle_why(job: Job, why: str) -> None:
    """What the job waits for, in words."""
    job.why = why


def _count(session: Session, job: Job, members: Sequence[JobProcess]) -> None:
    """A membership of another size is no recovery from a fault, nor are the same members once more."""
    before = queries.generation(session, job.id, job.generation) if job.generation else None
    if before is None:
        return
    if len(before.members) != len(members):
        job.resizes += 1
    elif before.members != [member.id for member in members]:
        job.recoveries += 1


def record(
    session: Session,
    job: Job,
    name: str,
    description: str,
    now: datetime,
    *,
    level: Level = Level.INFO,
    details: dict[str, Any] | None = None,
) -> None:
    """An event about this job."""
    events.record(
        session,
        name,
        description,
        about=About.JOB,
        level=level,
        cluster_id=job.cluster_id,
        job_id=job.id,
        details=details,
        now=now,
    )
