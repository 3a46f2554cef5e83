"""Nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed, Versioned
from models.ids import ClusterId, GroupId, InstanceId, LogicalId, NodeId
from models.node.states import NodeState


class Node(Leased, Versioned, Timed, Base):
    """One host of a group.

    ``id`` doubles as the claim by which the provider launches it once only. ``last_seen`` and ``beat_sequence`` are liveness, written in batches
    and never part of a transition; ``stream_lost_at`` is when the directive stream closed, None while it is open or was never opened.
    ``message`` is sticky: it keeps the last failure's text. ``lost_because`` names the witnesses of a loss, in words.
    """

    __tablename__ = "node"
    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)
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
    last_seen: Mapped[datetime | None]
    beat_sequence: Mapped[int] = mapped_column(default=-1)
    stream_lost_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(index=True)
    launched_at: Mapped[datetime | None]
