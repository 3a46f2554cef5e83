"""Jobs, their processes, generations and steps."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Double, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed, Versioned
from models.ids import ClusterId, JobId, NodeId, ProcessId
from models.job.states import JobState, ProcessState


class Job(Leased, Versioned, Timed, Base):
    """A training job. ``spec`` is the job file as it was accepted, defaults filled in. Callers of other teams than ``team`` do not see it.

    ``restarts`` counts how often user code has failed, limited by ``max_restarts``: processes that it ended, and generations that it ended while
    its processes lived on; ``recoveries`` counts generations after the
    first with as many members as the one before, ``resizes`` those with another number. ``halted_at`` is when its processes were told to end.
    ``productive_s`` sums the seconds of distinct committed steps; ``why`` says in words what the last plan decided or waits for.

    ``replicas`` is the number of nodes that the job has or forms with; ``wish`` the one that it is to have when there are enough, as its file or, at
    ``wished_at``, a command said; ``ceiling`` the most that it may have because others need nodes. The three differ only for elastic jobs. ``awaits`` counts
    nodes that it has lost and waits for, since ``awaits_since``: these are kept for it for a while.
    """

    __tablename__ = "job"
    __table_args__ = (
        Index(
            "uq_job_live_name",
            "cluster_id",
            "team",
            "name",
            unique=True,
            postgresql_nulls_not_distinct=True,
            postgresql_where=text("state NOT IN ('succeeded', 'failed', 'stopped')"),
        ),
    )
    KIND: ClassVar[str] = "job"

    id: Mapped[JobId] = mapped_column(primary_key=True)
    name: Mapped[str]
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    team: Mapped[str | None]
    state: Mapped[JobState]
    spec: Mapped[dict[str, Any]]
    replicas: Mapped[int] = mapped_column(Integer)
    wish: Mapped[int] = mapped_column(Integer)
    wished_at: Mapped[datetime | None]
    ceiling: Mapped[int | None] = mapped_column(Integer)
    ceiling_why: Mapped[str | None]
    awaits: Mapped[int] = mapped_column(Integer, default=0)
    awaits_since: Mapped[datetime | None]
    processes_per_node: Mapped[int] = mapped_column(Integer)
    spares: Mapped[int] = mapped_column(Integer)
    max_restarts: Mapped[int] = mapped_column(Integer)
    stop_requested: Mapped[bool] = mapped_column(default=False)
    halted_at: Mapped[datetime | None]
    generation: Mapped[int] = mapped_column(Integer, default=0)
    rendezvous_token: Mapped[str]
    step: Mapped[int] = mapped_column(default=0)
    loss_first: Mapped[float | None] = mapped_column(Double)
    loss_last: Mapped[float | None] = mapped_column(Double)
    productive_s: Mapped[float] = mapped_column(Double, default=0.0)

    restarts: Mapped[int] = mapped_column(Integer, default=0)
    recoveries: Mapped[int] = mapped_column(Integer, default=0)
    resizes: Mapped[int] = mapped_column(Integer, default=0)
    evictions: Mapped[int] = mapped_column(Integer, default=0)
    why: Mapped[str | None]
    failure: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(index=True)
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class JobProcess(Timed, Base):
    """A process that should be, is or was alive on a node for a job. ``rank`` is None for a spare; ids are never used twice.

    ``reformed`` is the newest generation it has joined with its state found, ``broken`` the newest one of which it reported a failed collective.
    ``device_fault`` is what its accelerator's driver said of it: which rank, which device, which code. ``raised`` is what user code raised
    while the process lived on: the generations, the times and the first traceback. ``hang`` is the newest word that it made no
    progress: generation, step, how (computing, waiting, frozen), seconds, limit_s, stack, at. ``lag`` is the newest word that it holds the others up, or
    has caught up: generation, rank, step, own_s, others_s, steps, has_caught_up.
    """

    __tablename__ = "job_process"
    __table_args__ = (Index("ix_job_process_job_state", "job_id", "state"), Index("ix_job_process_node_state", "node_id", "state"))

    id: Mapped[ProcessId] = mapped_column(primary_key=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("job.id"))
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"))
    rank: Mapped[int | None] = mapped_column(Integer)
    local_rank: Mapped[int] = mapped_column(Integer, default=0)
    state: Mapped[ProcessState]
    pid: Mapped[int | None]
    reformed: Mapped[int] = mapped_column(Integer, default=0)
    broken: Mapped[int] = mapped_column(Integer, default=0)
    broken_at: Mapped[datetime | None]
    step: Mapped[int | None]
    digest: Mapped[str | None]
    exit_code: Mapped[int | None] = mapped_column(Integer)
    signal: Mapped[int | None] = mapped_column(Integer)
    failure: Mapped[str | None]
    device_fault: Mapped[str | None]
    hang: Mapped[dict[str, Any] | None]
    lag: Mapped[dict[str, Any] | None]
    raised: Mapped[dict[str, Any] | None]
    tail: Mapped[str | None]
    created_at: Mapped[datetime]


class ProcessLog(Base):
    """The last lines that a process has written. ``end`` counts all its bytes so far, so ``text`` holds those before ``end``."""

    __tablename__ = "process_log"

    process_id: Mapped[ProcessId] = mapped_column(ForeignKey("job_process.id"), primary_key=True)
    text: Mapped[str]
    end: Mapped[int] = mapped_column(default=0)
    at: Mapped[datetime]


class Generation(Base):
    """One membership of a job, and the timeline of its forming.

    ``members`` is a list of process ids by rank. ``step`` is the one it goes on with, ``reached`` the one after the last it is known to have
    committed, ``steps_lost`` how many it has to do again. ``evidence_at`` is when the first evidence of the cause was seen, ``decided_at`` when the plan
    was settled, ``formed_at`` when the last member had its state, ``first_step_at`` when the next step was committed. ``reports`` maps a
    rank to what it told of its reform (source, bytes, phases, copies).

    ``fresh_steps`` to ``last_at`` are sums and bounds of its rows of ``Step``: how many, their microseconds without stalls, those of stalls, when the
    first of them began and the last ended.
    """

    __tablename__ = "generation"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("job.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    cause: Mapped[str]
    members: Mapped[list[Any]]
    step: Mapped[int | None]
    reached: Mapped[int | None]
    steps_lost: Mapped[int] = mapped_column(Integer, default=0)
    evidence_at: Mapped[datetime | None]
    decided_at: Mapped[datetime]
    formed_at: Mapped[datetime | None]
    first_step_at: Mapped[datetime | None]
    reports: Mapped[dict[str, Any]] = mapped_column(default=dict)
    fresh_steps: Mapped[int] = mapped_column(default=0)
    trained_us: Mapped[int] = mapped_column(default=0)
    stalled_us: Mapped[int] = mapped_column(default=0)
    fresh_at: Mapped[datetime | None]
    last_at: Mapped[datetime | None]


class Step(Base):
    """A committed optimizer step, as it was first done. ``stall_s`` of its ``seconds`` were spent waiting for a save to have read the state."""

    __tablename__ = "step"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("job.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(Integer)
    loss: Mapped[float | None] = mapped_column(Double)
    seconds: Mapped[float] = mapped_column(Double)
    stall_s: Mapped[float] = mapped_column(Double, default=0.0)
    at: Mapped[datetime]
