"""Jobs as they look on the wire. Translation is pure: rows in, shapes out."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from api.operations.jobs import KEY, JobView
from api.operations.redundancy import Redundancy
from api.own.checkpoints import SavingShape
from api.own.wire import Real, Wire, word
from models.events import Event
from models.job.states import ALIVE
from models.job.table import Generation, JobProcess, ProcessLog, Step


class JobStatus(StrEnum):
    """A job's state as it is written on the wire."""

    QUEUED = "Queued"
    FORMING = "Forming"
    TRAINING = "Training"
    RESIZING = "Resizing"
    RECOVERING = "Recovering"
    EVICTING = "Evicting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


class ProcessShape(Wire):
    """``rank`` is null for a spare, and for a process that no longer counts. ``digest`` is that of its final state."""

    process_id: str
    instance_id: str
    rank: int | None
    local_rank: int
    status: str
    pid: int | None
    step: int | None
    digest: str | None
    exit_code: int | None
    signal: int | None
    failure: str | None
    log_tail: str | None


class MemberShape(Wire):
    """How one rank found its state when it joined: ``source`` says where, ``phases`` when each phase ended, in Unix seconds."""

    rank: int
    process_id: str
    instance_id: str | None
    source: str | None
    bytes_moved: int | None
    step: int | None
    phases: dict[str, float]


class GenerationShape(Wire):
    """One membership and the timeline of its forming; a time is null until it has come."""

    number: int
    cause: str
    world_size: int
    step: int | None
    steps_lost: int
    evidence_at: datetime | None
    decided_at: datetime
    formed_at: datetime | None
    first_step_at: datetime | None
    members: tuple[MemberShape, ...]


class RedundancyShape(Wire):
    """How many ``copies`` of each part of a job's state live in its ranks, and how many committed steps a fault costs at most.

    Both are null while they are not known: copies until the ranks have told, steps where they depend on the newest checkpoint. ``description`` says what
    can be said. ``warning`` is set if a single fault can take the only copy.
    """

    copies: int | None
    worst_loss_steps: int | None
    description: str
    warning: str | None


class JobSummary(Wire):
    """``goodput`` is the productive share of the seconds of accelerators that had, or were to have, a rank (see GetGoodput); null if it is not known.

    ``nodes`` are the instances of the current members by rank; ``why`` says what the job waits for, or why it is as it is.
    ``replicas`` is the number of nodes it has or forms with, ``wished_replicas`` the one that is asked for; they differ only for elastic jobs.
    ``recoveries`` are memberships after the first that replaced members, ``resizes`` those of another size.
    """

    job_id: str
    name: str
    cluster: str
    team: str | None
    status: JobStatus
    step: int
    loss_first: Real | None
    loss_last: Real | None
    generation: int
    world_size: int
    nodes: tuple[str, ...]
    evictions: int
    restarts: int
    recoveries: int
    resizes: int
    replicas: int
    wished_replicas: int
    goodput: float | None
    productive_s: float
    why: str | None
    failure: str | None
    is_stopping: bool
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class JobShape(JobSummary):
    """A job with everything that is known of it; ``spec`` is its job file with the defaults filled in."""

    spec: dict[str, Any]
    steps_lost: int
    redundancy: RedundancyShape
    checkpoint: SavingShape
    processes: tuple[ProcessShape, ...]
    generations: tuple[GenerationShape, ...]


class Submitted(Wire):
    job_id: str
    redundancy: RedundancyShape


class JobList(Wire):
    jobs: tuple[JobSummary, ...]
    next_token: str | None


class StepShape(Wire):
    number: int
    generation: int
    loss: Real | None
    seconds: float
    at: datetime


class StepList(Wire):
    steps: tuple[StepShape, ...]
    next_token: str | None = None


class EventShape(Wire):
    at: datetime
    level: str
    name: str
    description: str
    details: dict[str, Any]


class EventList(Wire):
    events: tuple[EventShape, ...]
    next_token: str | None = None


class LogShape(Wire):
    """The last of what a process has written. ``end`` counts all its bytes so far: what is new since then is the text's end."""

    process_id: str
    instance_id: str
    rank: int | None
    status: str
    text: str
    end: int


class LogList(Wire):
    status: JobStatus
    processes: tuple[LogShape, ...]


def summary(view: JobView, *, now: datetime) -> JobSummary:
    return JobSummary(**_common(view, now))


def full(view: JobView, saving: SavingShape, *, now: datetime) -> JobShape:
    return JobShape(
        **_common(view, now),
        spec={name: value for name, value in view.job.spec.items() if name != KEY},
        steps_lost=sum(generation.steps_lost for generation in view.generations),
        redundancy=redundancy(view.redundancy),
        checkpoint=saving,
        processes=tuple(_process(process, view) for process in view.processes),
        generations=tuple(_generation(generation, view) for generation in view.generations),
    )


def redundancy(found: Redundancy) -> RedundancyShape:
    return RedundancyShape(copies=found.copies, worst_loss_steps=found.worst_loss, description=found.words, warning=found.warning)


def step(row: Step) -> StepShape:
    return StepShape(number=row.number, generation=row.generation, loss=row.loss, seconds=row.seconds, at=row.at)


def event(row: Event) -> EventShape:
    return EventShape(at=row.at, level=row.level, name=row.name, description=row.description, details=row.details)


def log(process: JobProcess, kept: ProcessLog | None, view: JobView, *, lines: int) -> LogShape:
    """What is kept of the log, or the tail that was told at the exit if nothing was."""
    text = kept.text if kept is not None else process.tail or ""
    last = text.splitlines(keepends=True)[-lines:] if lines else []
    return LogShape(
        process_id=process.id,
        instance_id=view.instances[process.node_id],
        rank=process.rank,
        status=word(process.state),
        text="".join(last),
        end=kept.end if kept is not None else len(text.encode()),
    )


def _common(view: JobView, now: datetime) -> dict[str, Any]:
    job, generation = view.job, view.generation
    return {
        "job_id": job.id,
        "name": job.name,
        "cluster": view.cluster,
        "team": job.team,
        "status": JobStatus[job.state.name],
        "step": job.step,
        "loss_first": job.loss_first,
        "loss_last": job.loss_last,
        "generation": job.generation,
        "world_size": len(generation.members) if generation else job.replicas * job.processes_per_node,
        "nodes": _nodes(view),
        "evictions": job.evictions,
        "restarts": job.restarts,
        "recoveries": job.recoveries,
        "resizes": job.resizes,
        "replicas": job.replicas,
        "wished_replicas": job.wish,
        "goodput": view.goodput(now),
        "productive_s": job.productive_s,
        "why": job.why,
        "failure": job.failure,
        "is_stopping": job.stop_requested,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
    }


def _nodes(view: JobView) -> tuple[str, ...]:
    """Of the current members, by rank; before there are any, of the processes that warm up."""
    places = {process.id: view.instances[process.node_id] for process in view.processes}
    if view.generation is not None:
        found = [places[process_id] for process_id in view.generation.members if process_id in places]
    else:
        found = [places[process.id] for process in view.processes if process.state in ALIVE]
    return tuple(dict.fromkeys(found))


def _process(process: JobProcess, view: JobView) -> ProcessShape:
    return ProcessShape(
        process_id=process.id,
        instance_id=view.instances[process.node_id],
        rank=process.rank,
        local_rank=process.local_rank,
        status=word(process.state),
        pid=process.pid,
        step=process.step,
        digest=process.digest,
        exit_code=process.exit_code,
        signal=process.signal,
        failure=process.failure,
        log_tail=process.tail,
    )


def _generation(generation: Generation, view: JobView) -> GenerationShape:
    return GenerationShape(
        number=generation.number,
        cause=generation.cause,
        world_size=len(generation.members),
        step=generation.step,
        steps_lost=generation.steps_lost,
        evidence_at=generation.evidence_at,
        decided_at=generation.decided_at,
        formed_at=generation.formed_at,
        first_step_at=generation.first_step_at,
        members=tuple(_member(rank, process_id, generation, view) for rank, process_id in enumerate(generation.members)),
    )


def _member(rank: int, process_id: str, generation: Generation, view: JobView) -> MemberShape:
    told: dict[str, Any] = generation.reports.get(str(rank), {})
    node_id = next((process.node_id for process in view.processes if process.id == process_id), "")
    return MemberShape(
        rank=rank,
        process_id=process_id,
        instance_id=view.instances.get(node_id),
        source=told.get("source"),
        bytes_moved=told.get("bytes_moved"),
        step=told.get("step"),
        phases={name: at for name, at in told.get("phases", {}).items() if at is not None},
    )
