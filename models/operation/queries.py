"""Reads of cluster operations."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.operation.states import OperationState
from models.operation.table import Operation


def open_of_cluster(session: Session, cluster_id: str) -> list[Operation]:
    """What was asked of a cluster and is not reached yet: one at most, since a newer one supersedes."""
    wanted = select(Operation).where(Operation.cluster_id == cluster_id, Operation.state == OperationState.IN_PROGRESS)
    return list(session.scalars(wanted.order_by(Operation.created_at, Operation.id)))
