"""Faults that were asked for."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Double, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Timed
from models.fault.states import FaultKind, FaultState
from models.ids import ClusterId, FaultId, JobId, NodeId, ProcessId


class Fault(Timed, Base):
    """``target`` is what the caller named; ``process_id`` what was found to play the rank then. ``seconds`` None: until it is cleared.

    ``cluster_id`` and ``node_id`` are None for the outage of an object store. ``namespace``, ``step`` and ``shard`` are of the copy that is to be
    corrupted. ``code`` and ``device`` are of an ``xid``: its number, and the place of the accelerator on its host. ``note`` is what the agent said
    of it.
    """

    __tablename__ = "fault"
    __table_args__ = (
        Index("ix_fault_node_state", "node_id", "state"),
        Index("ix_fault_outage", "state", postgresql_where=text("kind = 'bucket-outage'")),
    )

    id: Mapped[FaultId] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)
    kind: Mapped[FaultKind]
    target: Mapped[str]
    cluster_id: Mapped[ClusterId | None] = mapped_column(ForeignKey("cluster.id"), index=True)
    node_id: Mapped[NodeId | None] = mapped_column(ForeignKey("node.id"))
    job_id: Mapped[JobId | None] = mapped_column(ForeignKey("job.id"), index=True)
    process_id: Mapped[ProcessId | None] = mapped_column(ForeignKey("job_process.id"))
    namespace: Mapped[str | None]
    step: Mapped[int | None]
    shard: Mapped[int | None]
    code: Mapped[int | None]
    device: Mapped[int | None]
    seconds: Mapped[float | None] = mapped_column(Double)
    state: Mapped[FaultState]
    note: Mapped[str | None]
    requested_by: Mapped[str]
    created_at: Mapped[datetime]
    struck_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
