"""Writes of cluster operations.

An operation's row is locked after every other row of a transaction: it is a leaf that nodes of one batch share.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from models.ids import ClusterId, OperationId, new_operation_id
from models.move import advance
from models.operation import queries
from models.operation.states import OPERATION, SUPERSEDES, OperationKind, OperationState
from models.operation.table import Operation


def request_operation(
    session: Session, cluster_id: ClusterId, kind: OperationKind, *, details: Mapping[str, Any], now: datetime
) -> OperationId:
    """Opens an operation; what it supersedes ends. Ended ones that nobody can look up any more are forgotten."""
    for older in queries.open_of_cluster(session, cluster_id, SUPERSEDES.get(kind, ())):
        _end(older, OperationState.SUPERSEDED, now)
    forgotten = delete(Operation).where(Operation.cluster_id == cluster_id, Operation.ended_at < now - queries.KEPT)
    session.execute(forgotten.execution_options(synchronize_session=False))
    operation_id = new_operation_id()
    session.add(
        Operation(id=operation_id, cluster_id=cluster_id, type=kind, state=OPERATION.initial, details=dict(details), created_at=now)
    )
    session.flush()
    return operation_id


def settle_done(session: Session, operation_id: OperationId, *, now: datetime) -> None:
    """All that was asked for has been reached, or was given up. An operation that has ended already stays as it is."""
    operation = queries.get(session, operation_id, lock=True)
    if operation is not None and operation.state is OperationState.IN_PROGRESS:
        _end(operation, OperationState.DONE, now)


def settle_all_done(session: Session, cluster_id: ClusterId, *, now: datetime) -> None:
    """The cluster is gone, and with it whatever was asked of it."""
    for operation in queries.open_of_cluster(session, cluster_id, tuple(OperationKind)):
        _end(operation, OperationState.DONE, now)


def _end(operation: Operation, new: OperationState, now: datetime) -> None:
    advance(OPERATION, operation, new, now=now)
    operation.ended_at = now
