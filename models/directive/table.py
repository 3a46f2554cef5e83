"""Directives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base
from models.directive.states import DirectiveState
from models.ids import JobId, NodeId


class Directive(Base):
    """``assignment`` is an ``everstep.protocol.Assignment`` in wire form. At most one is current for a node and a job."""

    __tablename__ = "directive"
    __table_args__ = (
        Index(
            "uq_directive_current",
            "node_id",
            "job_id",
            unique=True,
            postgresql_where=text("state IN ('issued', 'delivered')"),
        ),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"))
    job_id: Mapped[JobId] = mapped_column(ForeignKey("job.id"))
    state: Mapped[DirectiveState]
    assignment: Mapped[dict[str, Any]]
    issued_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
