"""Reads of cluster operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.errors import NotFound
from models.ids import OperationId
from models.operation.states import LISTED, OF_CLUSTER, OperationKind, OperationState
from models.operation.table import Operation
from models.paging import Cut, Page, page
from models.session import locked

KEPT = timedelta(days=14)
"""How long an operation can be looked up."""


def open_of_cluster(
    session: Session, cluster_id: str, kinds: Sequence[OperationKind] = (OperationKind.SCALING,)
) -> list[Operation]:
    """What was asked of a cluster and is not reached yet, oldest first. Of scalings there is one at most, since a newer one supersedes."""
    wanted = select(Operation).where(
        Operation.cluster_id == cluster_id, Operation.state == OperationState.IN_PROGRESS, Operation.type.in_(kinds)
    )
    return list(session.scalars(wanted.order_by(Operation.created_at, Operation.id)))


def current(session: Session, cluster_id: str) -> OperationId | None:
    """What the cluster as a whole is in the middle of: the operation to which what happens to it and its groups belongs."""
    found = open_of_cluster(session, cluster_id, OF_CLUSTER)
    return found[-1].id if found else None


def get(session: Session, operation_id: str, *, lock: bool = False) -> Operation | None:
    wanted = select(Operation).where(Operation.id == operation_id)
    return session.scalars(locked(wanted) if lock else wanted).one_or_none()


def find(session: Session, cluster_id: str, operation_id: str, *, now: datetime) -> Operation:
    """An operation that the API has a word for. Raises NotFound."""
    row = get(session, operation_id)
    if row is None or row.cluster_id != cluster_id or row.type not in LISTED or row.created_at <= now - KEPT:
        raise NotFound(kind="Cluster operation", name=operation_id)
    return row


@dataclass(frozen=True)
class OperationFilter:
    """Which operations a listing shows. A bound in time is exclusive on both sides; None does not bound."""

    created_after: datetime | None = None
    created_before: datetime | None = None
    kind: OperationKind | None = None
    state: OperationState | None = None


def listed(session: Session, cluster_id: str, wanted: OperationFilter, cut: Cut, *, now: datetime) -> Page[Operation]:
    """A cluster's operations by creation, as far as the API has a word for them."""
    kinds = LISTED if wanted.kind is None else (wanted.kind,)
    statement = select(Operation).where(
        Operation.cluster_id == cluster_id, Operation.type.in_(kinds), Operation.created_at > now - KEPT
    )
    if wanted.state is not None:
        statement = statement.where(Operation.state == wanted.state)
    if wanted.created_after is not None:
        statement = statement.where(Operation.created_at > wanted.created_after)
    if wanted.created_before is not None:
        statement = statement.where(Operation.created_at < wanted.created_before)
    return page(session, statement, (Operation.created_at, Operation.id), lambda row: (row.created_at, row.id), cut)
