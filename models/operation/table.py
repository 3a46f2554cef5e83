"""Cluster operations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base
from models.ids import ClusterId, OperationId
from models.operation.states import OperationState


class Operation(Base):
    """Something that was asked of a cluster and takes time. ``details`` maps a group's name to its counts before and wanted."""

    __tablename__ = "operation"

    id: Mapped[OperationId] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    type: Mapped[str]
    state: Mapped[OperationState]
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
