"""Nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed, Versioned
from models.ids import ClusterId, GroupId, InstanceId, LogicalId, NodeId, OperationId
from models.node.states import CapacityType, HostWord, NodeState, Restart, Schedulability


class Node(Leased, Versioned, Timed, Base):
    """One host of a group.

    ``id`` doubles as the claim by which the provider launches it once only. ``last_seen`` and ``beat_sequence`` are liveness, written in batches
    and never part of a transition; ``stream_lost_at`` is when the directive stream closed, None while it is open or was never opened.
    ``host_word`` is what the provider last said of the host. ``message`` is sticky: it keeps the last failure's text. ``lost_because`` names the witnesses of a loss, in words.
    ``operation_id`` is the cluster operation that the node is in the middle of, and to which what happens to it meanwhile belongs.
    ``schedulability`` is what its conditions come to; ``labels`` and ``taints`` are all that it carries, those of its health and those declared for its
    group. ``leave_by`` is when whatever runs there must have left at the latest, and ``leave_why`` why, both None as long as nobody must;
    ``capacity_type`` and ``zone`` are those of its host.
    ``held_for`` names who keeps it from taking new work, None if nobody does. ``software_at`` is when its software was last changed.
    """

    __tablename__ = "node"
    __table_args__ = (
        Index("ix_node_listed", "cluster_id", "created_at", "id", postgresql_where=text("state <> 'gone'")),
        # In the migration the group's name has COLLATE "C", as the listing sorts; Alembic could not compare that.
        Index("ix_node_listed_by_group", "cluster_id", "group_name", "id", postgresql_where=text("state <> 'gone'")),
        {"postgresql_with": {"fillfactor": "50"}},
    )
    KIND: ClassVar[str] = "node"

    id: Mapped[NodeId] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    group_id: Mapped[GroupId] = mapped_column(ForeignKey("instance_group.id"), index=True)
    group_name: Mapped[str]
    logical_id: Mapped[LogicalId] = mapped_column(index=True)
    state: Mapped[NodeState]
    is_wanted: Mapped[bool] = mapped_column(default=True)
    instance_type: Mapped[str]
    instance_id: Mapped[InstanceId | None] = mapped_column(unique=True)
    address: Mapped[str | None]
    rendezvous_port: Mapped[int | None] = mapped_column(Integer)
    facts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    message: Mapped[str | None]
    lost_because: Mapped[str | None]
    node_token_digest: Mapped[str | None] = mapped_column(index=True)
    boot: Mapped[str | None]
    report_sequence: Mapped[int] = mapped_column(default=-1)
    lifecycle_done: Mapped[bool] = mapped_column(default=False)
    image: Mapped[str | None]
    starts: Mapped[int] = mapped_column(Integer, default=0)
    host_start: Mapped[int] = mapped_column(Integer, default=0)
    boot_start: Mapped[int] = mapped_column(Integer, default=0)
    restart: Mapped[Restart | None]
    restart_image: Mapped[str | None]
    restart_drain_s: Mapped[int | None] = mapped_column(Integer)
    restart_is_forced: Mapped[bool] = mapped_column(default=True)
    is_replaced_on_request: Mapped[bool] = mapped_column(default=False)
    move_to: Mapped[GroupId | None] = mapped_column(ForeignKey("instance_group.id"), index=True)
    last_seen: Mapped[datetime | None]
    beat_sequence: Mapped[int] = mapped_column(default=-1)
    stream_lost_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    launched_at: Mapped[datetime | None]
    operation_id: Mapped[OperationId | None] = mapped_column(index=True)
    held_for: Mapped[str | None]
    schedulability: Mapped[Schedulability] = mapped_column(default=Schedulability.SCHEDULABLE)
    labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    taints: Mapped[list[Any]] = mapped_column(default=list)
    leave_by: Mapped[datetime | None]
    leave_why: Mapped[str | None]
    capacity_type: Mapped[CapacityType] = mapped_column(default=CapacityType.ON_DEMAND)
    zone: Mapped[str | None]
    software_at: Mapped[datetime | None]
    host_fence: Mapped[int] = mapped_column(BigInteger, default=0)
    host_lease_owner: Mapped[str | None] = mapped_column(String(128))
    host_lease_until: Mapped[datetime | None]
    host_reconcile_at: Mapped[datetime | None] = mapped_column(index=True)
    host_attempts: Mapped[int] = mapped_column(Integer, default=0)
    host_word: Mapped[HostWord | None]
    host_word_at: Mapped[datetime | None]

    @property
    def takes_work(self) -> bool:
        """Whether a new process may be placed on it: nobody holds it, nothing is wrong with it, and it is not about to go."""
        return self.held_for is None and self.schedulability is Schedulability.SCHEDULABLE and self.leave_why is None


_columns = Node.__table__.c


class Host(Base):
    """The same row, seen from the slow lane: what the provider is asked about a node has a lease of its own.

    With one lease for both, a provider that hangs would hold up what is concluded of the node meanwhile. One row, so that one lock guards both.
    """

    __table__ = Node.__table__
    __mapper_args__ = {  # noqa: RUF012  (SQLAlchemy reads a plain class attribute)
        # Columns, not names: a name would mean the node's own lease.
        "include_properties": (
            _columns.id,
            _columns.host_fence,
            _columns.host_lease_owner,
            _columns.host_lease_until,
            _columns.host_reconcile_at,
            _columns.host_attempts,
        )
    }
    KIND: ClassVar[str] = "host"

    id = _columns.id
    fence = _columns.host_fence
    lease_owner = _columns.host_lease_owner
    lease_until = _columns.host_lease_until
    reconcile_at = _columns.host_reconcile_at
    attempts = _columns.host_attempts
