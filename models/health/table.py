"""Deep health checks: what was asked for, and a row for each node that is examined."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed
from models.health.states import CheckState
from models.ids import CheckId, ClusterId, HealthCheckId, NodeId, OperationId


class HealthCheck(Leased, Base):
    """On demand, with an operation that callers can look up; or of one node that has just started, without. ``ended_at`` closes it."""

    __tablename__ = "health_check"
    __table_args__ = (
        Index(
            "uq_health_check_on_demand",
            "cluster_id",
            unique=True,
            postgresql_where=text("ended_at IS NULL AND operation_id IS NOT NULL"),
        ),
    )
    KIND: ClassVar[str] = "health"

    id: Mapped[HealthCheckId] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"))
    operation_id: Mapped[OperationId | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class NodeCheck(Timed, Base):
    """``kinds`` are those that the node is to run; ``order`` is what its agent is told, once it has been asked; ``findings`` what it found."""

    __tablename__ = "node_check"
    __table_args__ = (Index("ix_node_check_node_state", "node_id", "state"),)

    id: Mapped[CheckId] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)
    health_check_id: Mapped[HealthCheckId] = mapped_column(ForeignKey("health_check.id"), index=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"))
    kinds: Mapped[list[Any]]
    order: Mapped[dict[str, Any]] = mapped_column(default=dict)
    state: Mapped[CheckState]
    findings: Mapped[list[Any]] = mapped_column(default=list)
    why: Mapped[str | None]
    created_at: Mapped[datetime]
