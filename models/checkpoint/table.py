"""Namespaces, the steps saved in them, the copies of their shards on nodes, nodes' memory tiers, and exports."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlalchemy import Boolean, Double, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed
from models.checkpoint.states import CopyState, ExportFormat, ExportState, StepState
from models.ids import CheckpointId, ExportId, JobId, NodeId


class CheckpointNamespace(Base):
    """``job_id`` is the job that saves there, or was the last to. It passes to a later job of the same ``team`` once that one has ended.

    ``memory_every`` and ``durable_every`` are the intervals in force, as rank 0 told them last, at ``told_step``; ``why`` explains them with their
    inputs. ``stall_s``, ``seconds`` and ``nbytes`` are of the newest save told. ``mtbf_s`` is the mean time between faults that the workers have
    observed for a job of this size (``workers.plans.fault_rate``), for the nodes' automatic choice. ``changed_at`` is when what nodes are told of it
    last changed.
    """

    __tablename__ = "checkpoint_namespace"

    name: Mapped[str] = mapped_column(primary_key=True)
    team: Mapped[str | None]
    job_id: Mapped[JobId] = mapped_column(ForeignKey("job.id"), index=True)
    memory_every: Mapped[int | None]
    durable_every: Mapped[int | None]
    why: Mapped[str | None]
    why_step: Mapped[int] = mapped_column(default=-1)
    stall_s: Mapped[float | None] = mapped_column(Double)
    seconds: Mapped[float | None] = mapped_column(Double)
    nbytes: Mapped[int | None]
    mtbf_s: Mapped[float | None] = mapped_column(Double)
    told_step: Mapped[int] = mapped_column(default=-1)
    told_at: Mapped[datetime | None]
    changed_at: Mapped[datetime]
    created_at: Mapped[datetime]


class CheckpointStep(Leased, Timed, Base):
    """A step that somebody holds a part of, or has held. Whether it is complete in memory is a query over its copies.

    ``save`` is the youngest save of it that is known of, and ``written_at`` when that one's youngest known shard was sealed. ``world_size`` is None
    until a holder of the metadata has told. ``durable_at`` is when it was committed to the object store, None if it is not there; ``durable_told_at``
    is when that was last told, so that a late word does not count. ``is_drain_wanted`` asks the nodes to make it durable.
    """

    __tablename__ = "checkpoint_step"
    __table_args__ = (
        Index("uq_checkpoint_step_namespace_step", "namespace", "step", unique=True),
        Index("ix_checkpoint_step_durable", "namespace", "step", postgresql_where=text("durable_at IS NOT NULL")),
    )
    KIND: ClassVar[str] = "checkpoint"

    id: Mapped[CheckpointId] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(ForeignKey("checkpoint_namespace.name"))
    step: Mapped[int]
    state: Mapped[StepState]
    save: Mapped[str]
    world_size: Mapped[int | None] = mapped_column(Integer)
    written_at: Mapped[datetime]
    is_pinned: Mapped[bool] = mapped_column(Boolean, default=False)
    is_drain_wanted: Mapped[bool] = mapped_column(Boolean, default=False)
    durable_at: Mapped[datetime | None]
    durable_save: Mapped[str | None]
    durable_bytes: Mapped[int | None]
    durable_told_at: Mapped[datetime | None]
    why: Mapped[str | None]
    created_at: Mapped[datetime]


class CheckpointCopy(Timed, Base):
    """A shard of one save of a step on a node, as the node told it last, at ``at``. Index and world size are equal for the metadata shard.

    A node holds one save of a shard at a time. Each save has a row of its own, so that a late word on the one before changes nothing of the newer one.
    """

    __tablename__ = "checkpoint_copy"
    __table_args__ = (Index("ix_checkpoint_copy_node_state", "node_id", "state"),)

    step_id: Mapped[CheckpointId] = mapped_column(ForeignKey("checkpoint_step.id"), primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"), primary_key=True)
    save: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[CopyState]
    world_size: Mapped[int | None] = mapped_column(Integer)
    nbytes: Mapped[int]
    digest: Mapped[str]
    at: Mapped[datetime]


class MemoryTier(Base):
    """What a node told last of its memory tier, under the plan ``plan``. ``outage`` are words on why it cannot reach the object store."""

    __tablename__ = "memory_tier"

    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"), primary_key=True)
    plan: Mapped[int]
    allocated_bytes: Mapped[int]
    used_bytes: Mapped[int]
    backlog_bytes: Mapped[int]
    waiting_since: Mapped[datetime | None]
    outage: Mapped[str | None]
    outage_since: Mapped[datetime | None]
    refusals: Mapped[int]
    note: Mapped[str | None]
    at: Mapped[datetime]


class CheckpointExport(Leased, Timed, Base):
    """A step written in another format below ``target``, a URL; None: the place that the control plane has for exports. ``url`` is where it lies."""

    __tablename__ = "checkpoint_export"
    KIND: ClassVar[str] = "export"

    id: Mapped[ExportId] = mapped_column(primary_key=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("job.id"), index=True)
    namespace: Mapped[str] = mapped_column(ForeignKey("checkpoint_namespace.name"))
    step: Mapped[int]
    format: Mapped[ExportFormat]
    target: Mapped[str | None]
    url: Mapped[str | None]
    state: Mapped[ExportState]
    why: Mapped[str | None]
    requested_by: Mapped[str]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
