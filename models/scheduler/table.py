"""Scheduler configurations: how a cluster ranks its tasks and shares what is idle."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.ids import RevisedId
from models.revised import Revised, Revision


class SchedulerConfig(Revised):
    """``settings`` holds ``SchedulerConfig``."""

    __tablename__ = "scheduler_config"
    __table_args__ = (
        Index("uq_scheduler_config_live_name", "cluster_id", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
    )
    NOUN: ClassVar[str] = "Cluster scheduler configuration"


class SchedulerConfigRevision(Revision):
    __tablename__ = "scheduler_config_revision"

    owner_id: Mapped[RevisedId] = mapped_column(ForeignKey("scheduler_config.id"), primary_key=True)
