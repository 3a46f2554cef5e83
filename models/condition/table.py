"""Conditions of nodes, and the holds that keep repairs of a group back."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlalchemy import BigInteger, ForeignKey, Identity, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed
from models.condition.states import ConditionState, FaultClass, Repair, Source
from models.ids import ClusterId, ConditionId, GroupId, HoldId, InstanceId, LogicalId, NodeId


class Condition(Timed, Base):
    """One fault of one node, guarded by its node's lock. ``occurrence`` is what its teller calls it: told twice, it is one row.

    ``type`` and ``reason`` are HyperPod's words, ``code`` is the vendor's with its kind. ``seen`` counts how often it was told while it was open;
    ``start`` is the start of the host at which it was seen. ``repair`` is what was decided, and ``why`` says so in words; ``told_at`` is when
    people were last told of it. ``at`` is when it happened, by its teller; ``created_at`` when we heard of it.
    """

    __tablename__ = "condition"
    __table_args__ = (
        Index("uq_condition_occurrence", "node_id", "occurrence", unique=True),
        Index("ix_condition_place", "logical_id", "code", "created_at"),
        Index("ix_condition_open", "node_id", postgresql_where=text("ended_at IS NULL")),
        Index("ix_condition_cluster", "cluster_id", "sequence"),
    )

    id: Mapped[ConditionId] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger, Identity(always=True), unique=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"))
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"))
    logical_id: Mapped[LogicalId]
    instance_id: Mapped[InstanceId | None]
    occurrence: Mapped[str]
    source: Mapped[Source]
    state: Mapped[ConditionState]
    fault_class: Mapped[FaultClass]
    type: Mapped[str]
    reason: Mapped[str]
    code: Mapped[str]
    vendor: Mapped[str | None] = mapped_column(String(32))
    device: Mapped[str | None]
    pid: Mapped[int | None]
    evidence: Mapped[str]
    seen: Mapped[int] = mapped_column(Integer, default=1)
    start: Mapped[int] = mapped_column(Integer, default=0)
    repair: Mapped[Repair | None]
    why: Mapped[str | None]
    at: Mapped[datetime]
    created_at: Mapped[datetime]
    told_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class RepairHold(Leased, Base):
    """Repairs on suspicion are held back in a group, since too many of its nodes have trouble at once. At most one of a group is open.

    ``resumed_until``: until then nothing is held back, because somebody has said so; ``ended_why`` says who, or what ended it.
    """

    __tablename__ = "repair_hold"
    __table_args__ = (
        Index("uq_repair_hold_open", "group_id", unique=True, postgresql_where=text("ended_at IS NULL")),
        Index("ix_repair_hold_group", "group_id", "created_at"),
    )
    KIND: ClassVar[str] = "hold"

    id: Mapped[HoldId] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    group_id: Mapped[GroupId] = mapped_column(ForeignKey("instance_group.id"))
    why: Mapped[str]
    created_at: Mapped[datetime]
    told_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    ended_why: Mapped[str | None]
    resumed_until: Mapped[datetime | None]
