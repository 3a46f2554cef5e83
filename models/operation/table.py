"""Cluster operations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base
from models.ids import ClusterId, OperationId
from models.operation.states import OperationState


class Operation(Base):
    """Something that was asked of a cluster and takes time. ``type`` is an ``OperationKind``.

    ``details`` is by kind: of a scaling, a group's name to its counts before and wanted; of a health check, what was asked for by wire name.
    """

    __tablename__ = "operation"
    __table_args__ = (Index("ix_operation_cluster_at", "cluster_id", "created_at", "id"),)

    id: Mapped[OperationId] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"))
    type: Mapped[str]
    state: Mapped[OperationState]
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
