"""Writes of software updates.

The row of an update is locked before its cluster's: its own reconciler alone locks it, and nobody who holds a cluster waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from models import events
from models.cluster.states import CLUSTER, GROUP, ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.events import About, Level
from models.ids import new_update_id
from models.move import advance, move, wake
from models.notify import nudge
from models.operation.changes import request_operation, settle_done
from models.operation.states import OperationKind
from models.software.states import UPDATE, UpdateState
from models.software.table import GroupUpdate, SoftwareUpdate


@dataclass(frozen=True)
class GroupWish:
    """What one locked group is to run, and how it gets there. ``patching`` says how nodes with work on them are treated."""

    group: InstanceGroup
    image: str
    deployment: dict[str, Any] = field(default_factory=dict)
    patching: dict[str, Any] = field(default_factory=dict)


def request_software(
    session: Session, cluster: Cluster, wishes: Sequence[GroupWish], *, cause: str, now: datetime
) -> SoftwareUpdate:
    """Asks that groups of a locked cluster run other releases.

    Raises:
        IllegalMove: the cluster, or one of the groups, may not be updated now.
    """
    asked = {wish.group.name: wish.image for wish in wishes}
    operation_id = request_operation(session, cluster.id, OperationKind.SOFTWARE_UPDATE, details=asked, now=now)
    update = SoftwareUpdate(
        id=new_update_id(), cluster_id=cluster.id, operation_id=operation_id, cause=cause, created_at=now, reconcile_at=now
    )
    session.add(update)
    session.flush()
    cluster.failure_message = None
    _record_cluster(
        session, cluster, update, "software update requested", f"Software update of cluster {cluster.name} started: {cause}.", now
    )
    move(session, CLUSTER, cluster, ClusterState.SYSTEM_UPDATING, now=now)
    for wish in wishes:
        _begin(session, update, wish, now)
    wake(session, update, now=now)
    return update


def request_look(session: Session, update: SoftwareUpdate) -> None:
    """Asks that the update is looked at now; it is looked at soon anyway."""
    nudge(session, SoftwareUpdate.KIND, update.id)


def settle_schedule(group: InstanceGroup, kept: dict[str, Any]) -> None:
    """What was concluded about the group's updates by themselves."""
    if group.patching != kept:
        group.patching = kept


def settle_begun(
    session: Session, update: SoftwareUpdate, group: InstanceGroup, row: GroupUpdate, *, why: str, now: datetime
) -> None:
    advance(UPDATE, row, UpdateState.IN_PROGRESS, now=now)
    _record(session, update, group, "software update started", why, now)


def settle_batch(
    session: Session,
    update: SoftwareUpdate,
    group: InstanceGroup,
    row: GroupUpdate,
    places: Collection[str],
    *,
    why: str,
    now: datetime,
) -> None:
    """These places are being changed from now on; the caller asks their nodes."""
    row.batch = sorted(places)
    row.batch_done_at = None
    _record(session, update, group, "software update batch", why, now)


def settle_skipped(
    session: Session,
    update: SoftwareUpdate,
    group: InstanceGroup,
    row: GroupUpdate,
    places: Collection[str],
    *,
    why: str,
    now: datetime,
) -> None:
    """These places stay as they are."""
    row.batch = [place for place in row.batch if place not in places]
    row.skipped = sorted({*row.skipped, *places})
    _record(session, update, group, "software update skipped nodes", why, now, level=Level.WARN)


def settle_batch_done(row: GroupUpdate, *, now: datetime) -> None:
    """The batch is through, or there was nothing to do: the interval until the next one, or until the end, begins."""
    row.batch = []
    row.batch_done_at = now


def settle_turned(
    session: Session, update: SoftwareUpdate, group: InstanceGroup, row: GroupUpdate, *, why: str, now: datetime
) -> None:
    """The group goes back to the release that it came from: what it runs and what it is to run change places."""
    advance(UPDATE, row, UpdateState.ROLLING_BACK, now=now)
    update.rolled_back_because = update.rolled_back_because or why
    row.batch, row.skipped, row.batch_done_at = [], [], None
    group.image, group.image_wanted = row.image_to, row.image_from
    if group.state in (GroupState.IN_SERVICE, GroupState.DEGRADED):
        advance(GROUP, group, GroupState.SYSTEM_UPDATING, now=now)
    _record(
        session, update, group, "software update rollback", f"Rollback to {row.image_from} started: {why}", now, level=Level.WARN
    )


def settle_ended(
    session: Session, update: SoftwareUpdate, group: InstanceGroup, row: GroupUpdate, new: UpdateState, *, why: str, now: datetime
) -> None:
    """Concludes a group's part of the update. A group that could not be rolled back has failed."""
    advance(UPDATE, row, new, now=now)
    row.batch = []
    if new is UpdateState.SUCCEEDED:
        group.image = group.image_wanted = row.image_to
    if new is UpdateState.ROLLED_BACK:
        group.image = group.image_wanted = row.image_from
    if group.state is GroupState.SYSTEM_UPDATING:
        advance(GROUP, group, GroupState.FAILED if new is UpdateState.FAILED else GroupState.IN_SERVICE, now=now)
    level = {UpdateState.SUCCEEDED: Level.INFO, UpdateState.ROLLED_BACK: Level.WARN}.get(new, Level.ERROR)
    _record(session, update, group, f"software update {new}", why, now, level=level)


def settle_closed(session: Session, cluster: Cluster, update: SoftwareUpdate, *, why: str, now: datetime) -> None:
    """Every group is through. The cluster serves again; if its groups had to go back, its failure message says why."""
    update.ended_at = now
    failure = update.rolled_back_because
    if cluster.state is ClusterState.SYSTEM_UPDATING:
        cluster.failure_message = None if failure is None else f"Software update failed and was rolled back: {failure}"
        move(session, CLUSTER, cluster, ClusterState.IN_SERVICE, now=now)
    level = Level.INFO if failure is None else Level.ERROR
    _record_cluster(session, cluster, update, "software update ended", why, now, level=level)
    settle_done(session, update.operation_id, now=now)
    session.flush()


def _record(
    session: Session,
    update: SoftwareUpdate,
    group: InstanceGroup,
    name: str,
    text: str,
    now: datetime,
    *,
    level: Level = Level.INFO,
) -> None:
    """An event about a group's update."""
    details: dict[str, Any] = {"image": group.image_wanted}
    if level is not Level.INFO:
        details["failure"] = text
    events.record(
        session,
        name,
        text,
        about=About.GROUP,
        level=level,
        cluster_id=update.cluster_id,
        group_name=group.name,
        operation_id=update.operation_id,
        details=details,
        now=now,
    )


def _begin(session: Session, update: SoftwareUpdate, wish: GroupWish, now: datetime) -> None:
    group = wish.group
    advance(GROUP, group, GroupState.SYSTEM_UPDATING, now=now)
    session.add(
        GroupUpdate(
            update_id=update.id,
            group_id=group.id,
            state=UPDATE.initial,
            state_since=now,
            image_from=group.image_wanted,
            image_to=wish.image,
            deployment=wish.deployment,
            patching=wish.patching,
            created_at=now,
        )
    )
    group.image, group.image_wanted, group.update_id = group.image_wanted, wish.image, update.id
    session.flush()
    _record(session, update, group, "software update requested", f"Update of {group.name} to {wish.image} was requested.", now)


def _record_cluster(
    session: Session, cluster: Cluster, update: SoftwareUpdate, name: str, text: str, now: datetime, *, level: Level = Level.INFO
) -> None:
    events.record(
        session,
        name,
        text,
        about=About.CLUSTER,
        level=level,
        cluster_id=cluster.id,
        operation_id=update.operation_id,
        details={"failure": text} if level is Level.ERROR else {},
        now=now,
    )
