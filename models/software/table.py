"""Software updates: one open at a time of a cluster, with a row for each of its groups."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed
from models.ids import ClusterId, GroupId, OperationId, UpdateId
from models.software.states import UpdateState


class SoftwareUpdate(Leased, Base):
    """``cause`` says who asked. ``rolled_back_because`` is None as long as the update goes forward; ``ended_at`` closes it."""

    __tablename__ = "software_update"
    __table_args__ = (Index("uq_software_update_open", "cluster_id", unique=True, postgresql_where=text("ended_at IS NULL")),)
    KIND: ClassVar[str] = "software"

    id: Mapped[UpdateId] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"))
    operation_id: Mapped[OperationId]
    cause: Mapped[str]
    rolled_back_because: Mapped[str | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class GroupUpdate(Timed, Base):
    """What becomes of one group.

    ``deployment`` is the caller's DeploymentConfig by wire name, ``patching`` how nodes with work on them are treated (empty: they are drained
    as for any restart). ``batch`` holds the logical ids of the places that are being changed, ``skipped`` of those that were left as they are.
    ``batch_done_at`` is when the last batch was through.
    """

    __tablename__ = "group_update"

    update_id: Mapped[UpdateId] = mapped_column(ForeignKey("software_update.id"), primary_key=True)
    group_id: Mapped[GroupId] = mapped_column(ForeignKey("instance_group.id"), primary_key=True)
    state: Mapped[UpdateState]
    image_from: Mapped[str | None]
    image_to: Mapped[str]
    deployment: Mapped[dict[str, Any]]
    patching: Mapped[dict[str, Any]]
    batch: Mapped[list[Any]] = mapped_column(default=list)
    skipped: Mapped[list[Any]] = mapped_column(default=list)
    batch_done_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
