"""Compute quotas: what a team is allotted of a cluster, and what it may lend and borrow."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.ids import RevisedId
from models.revised import Revised, Revision


class ComputeQuota(Revised):
    """``settings`` holds ``ComputeQuotaConfig``, ``ComputeQuotaTarget`` and ``ActivationState``; ``team`` is the target's."""

    __tablename__ = "compute_quota"
    __table_args__ = (
        Index("uq_compute_quota_live_name", "cluster_id", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
        Index("uq_compute_quota_live_team", "cluster_id", "team", unique=True, postgresql_where=text("state <> 'deleted'")),
    )
    NOUN: ClassVar[str] = "Compute quota"

    team: Mapped[str]


class ComputeQuotaRevision(Revision):
    __tablename__ = "compute_quota_revision"

    owner_id: Mapped[RevisedId] = mapped_column(ForeignKey("compute_quota.id"), primary_key=True)
