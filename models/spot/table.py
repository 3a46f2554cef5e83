"""Spot capacity: notices, prices as a series, what was observed of interruptions, policies, and what was borrowed from other groups."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Double, ForeignKey, Identity, Index, Integer, Numeric, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed, Versioned
from models.ids import ClusterId, GroupId, NodeId
from models.node.states import CapacityType
from models.spot.states import NoticeKind, NoticeState


class Notice(Leased, Versioned, Timed, Base):
    """What the provider has said of a node. One open notice of a kind and node.

    ``why`` is what the node's ``leave_why`` says for its sake. ``deadline`` None: there is no certain one. ``source`` is how it came to be known,
    of several ways all of them.
    """

    __tablename__ = "spot_notice"
    __table_args__ = (
        Index(
            "uq_spot_notice_open",
            "node_id",
            "kind",
            unique=True,
            postgresql_where=text("state IN ('announced', 'evacuating')"),
        ),
        Index("ix_spot_notice_of_type", "instance_type", "zone", "announced_at"),
    )
    KIND: ClassVar[str] = "spot"

    id: Mapped[str] = mapped_column(primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), index=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"), index=True)
    kind: Mapped[NoticeKind]
    state: Mapped[NoticeState]
    instance_type: Mapped[str]
    zone: Mapped[str]
    source: Mapped[str]
    why: Mapped[str]
    announced_at: Mapped[datetime]
    deadline: Mapped[datetime | None]


class Price(Base):
    """What an hour of a host costs in dollars from ``at`` on, until the next price of the same market, type and zone. Append-only.

    List prices have the zone ``""``: they hold in all of them. So do spot prices whose source does not tell zones apart.
    """

    __tablename__ = "price"
    __table_args__ = (UniqueConstraint("market", "instance_type", "zone", "at"), Index("ix_price_listed", "at", "id"))

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    market: Mapped[CapacityType]
    instance_type: Mapped[str]
    zone: Mapped[str]
    at: Mapped[datetime]
    per_hour: Mapped[Decimal] = mapped_column(Numeric())


class InterruptionRate(Base):
    """How often a spot host of the type is taken in the zone, by what has been seen: interruptions an hour, older ones weighing less."""

    __tablename__ = "interruption_rate"

    instance_type: Mapped[str] = mapped_column(primary_key=True)
    zone: Mapped[str] = mapped_column(primary_key=True)
    per_hour: Mapped[float] = mapped_column(Double)
    interruptions: Mapped[float] = mapped_column(Double)
    hours: Mapped[float] = mapped_column(Double)
    at: Mapped[datetime]


class SpotPolicy(Base):
    """How spot groups of a cluster are kept going. ``group_name`` ``""``: every spot group that has no policy of its own.

    ``fallback_groups`` are names of other groups, the preferred ones first, which stand in when none of the group's types is to be had for
    ``fall_back_after_s``. What was borrowed is given back when spot has served for ``return_after_s``, if ``return_to_spot``.
    """

    __tablename__ = "spot_policy"

    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"), primary_key=True)
    group_name: Mapped[str] = mapped_column(primary_key=True)
    fallback_groups: Mapped[list[Any]]
    fall_back_after_s: Mapped[int] = mapped_column(Integer)
    max_price_per_hour: Mapped[Decimal | None] = mapped_column(Numeric())
    return_to_spot: Mapped[bool]
    return_after_s: Mapped[int] = mapped_column(Integer)
    leave_on_rebalance: Mapped[bool]
    changed_at: Mapped[datetime]


class SpotLoan(Base):
    """One node that ``lender_id`` runs in place of one of ``group_id``: as long as it is open the lender wants one node more than its target."""

    __tablename__ = "spot_loan"
    __table_args__ = (Index("ix_spot_loan_open", "cluster_id", postgresql_where=text("returned_at IS NULL")),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    cluster_id: Mapped[ClusterId] = mapped_column(ForeignKey("cluster.id"))
    group_id: Mapped[GroupId] = mapped_column(ForeignKey("instance_group.id"))
    lender_id: Mapped[GroupId] = mapped_column(ForeignKey("instance_group.id"))
    why: Mapped[str]
    since: Mapped[datetime]
    returned_at: Mapped[datetime | None]
    returned_why: Mapped[str | None]
