"""What is attached to nodes."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, Leased, Timed, Versioned
from models.ids import NodeId
from models.volume.states import AttachmentKind, AttachmentState


class Attachment(Leased, Versioned, Timed, Base):
    """A volume or an interface, ``resource_id``, at one node. One of a kind at a time: who is detached may be attached anew, by another row.

    ``device`` is a volume's name on its node, None for an interface. ``message`` says why it is busy, or was refused.
    """

    __tablename__ = "attachment"
    __table_args__ = (
        Index("uq_attachment_live_resource", "resource_id", unique=True, postgresql_where=text("state <> 'detached'")),
    )
    KIND: ClassVar[str] = "attachment"

    id: Mapped[str] = mapped_column(primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("node.id"), index=True)
    kind: Mapped[AttachmentKind]
    resource_id: Mapped[str]
    device: Mapped[str | None]
    state: Mapped[AttachmentState]
    message: Mapped[str | None]
    created_at: Mapped[datetime]
