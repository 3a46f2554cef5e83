"""Targets of groups that are changed node by node: what a batch adds, deletes or moves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy.orm import Session

from models import events
from models.cluster.table import Cluster, InstanceGroup
from models.events import About
from models.ids import OperationId
from models.move import wake
from models.operation.changes import request_operation
from models.operation.states import OperationKind


def request_counts(
    session: Session,
    cluster: Cluster,
    by: Mapping[InstanceGroup, int],
    *,
    current: Mapping[str, int],
    why: str,
    kind: OperationKind = OperationKind.SCALING,
    now: datetime,
) -> OperationId:
    """Changes the targets of groups of a locked cluster by so many nodes, and opens the operation that this is.

    What a rollback returns to changes with them: it must neither bring back a node that was deleted nor take one that came from elsewhere.
    ``current`` is how many nodes of each group serve, by the group's id.
    """
    details = {
        group.name: {
            "before": group.target_count,
            "current": current.get(group.id, 0),
            "wanted": group.target_count + change,
            "minimum": group.min_count,
        }
        for group, change in by.items()
    }
    operation_id = request_operation(session, cluster.id, kind, details=details, now=now)
    for group, change in by.items():
        request_count(session, cluster, group, change, why=why, operation_id=operation_id, now=now)
    wake(session, cluster, now=now)
    return operation_id


def request_count(
    session: Session,
    cluster: Cluster,
    group: InstanceGroup,
    change: int,
    *,
    why: str,
    operation_id: OperationId | None = None,
    now: datetime,
) -> None:
    """Changes one group's target."""
    group.target_count += change
    if group.settled is not None:
        group.settled = {**group.settled, "target_count": max(0, group.settled["target_count"] + change)}
    events.record(
        session,
        "target changed",
        f"Instance group {group.name} is to have {group.target_count} nodes: {why}",
        about=About.GROUP,
        cluster_id=cluster.id,
        group_name=group.name,
        operation_id=operation_id,
        details={"target": group.target_count, "minimum": group.min_count},
        now=now,
    )
    session.flush()
