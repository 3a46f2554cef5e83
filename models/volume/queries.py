"""Reads of what is attached to nodes."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.session import ACROSS_TEAMS, locked
from models.volume.states import AttachmentState
from models.volume.table import Attachment


def of_node(session: Session, node_id: str) -> list[Attachment]:
    """What is attached to a node, or on its way; locked, in the order of ids."""
    wanted = select(Attachment).where(Attachment.node_id == node_id, Attachment.state != AttachmentState.DETACHED)
    return list(session.scalars(locked(wanted.order_by(Attachment.id))))


def of_resource(session: Session, resource_id: str) -> Attachment | None:
    """Where a volume or an interface is attached, or on its way to, whoever's node that is."""
    wanted = select(Attachment).where(Attachment.resource_id == resource_id, Attachment.state != AttachmentState.DETACHED)
    return session.scalars(locked(wanted).execution_options(**{ACROSS_TEAMS: True})).one_or_none()
