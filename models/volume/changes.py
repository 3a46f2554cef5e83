"""Writes of what is attached to nodes. Rows of attachments are locked after a node's."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from models.errors import Invalid
from models.events import Level
from models.ids import new_attachment_id
from models.move import move, wake
from models.node.changes import record
from models.node.table import Node
from models.session import breaks
from models.volume import queries
from models.volume.states import ATTACHMENT, AttachmentKind, AttachmentState
from models.volume.table import Attachment


def request_attachment(
    session: Session, node: Node, kind: AttachmentKind, resource_id: str, *, device: str | None = None, now: datetime
) -> Attachment:
    """Asks that a volume or an interface is attached to a locked node.

    Raises:
        Invalid: it is attached somewhere already.
    """
    attachment = Attachment(
        id=new_attachment_id("eni" if kind is AttachmentKind.INTERFACE else "vol"),
        node_id=node.id,
        kind=kind,
        resource_id=resource_id,
        device=device,
        state=ATTACHMENT.initial,
        state_since=now,
        created_at=now,
    )
    try:
        with session.begin_nested():
            session.add(attachment)
    except IntegrityError as error:
        if breaks(error, "uq_attachment_live_resource"):
            raise Invalid(message=f"{kind.capitalize()} '{resource_id}' is attached to another node; detach it first.") from error
        raise
    record(session, node, f"{kind} requested", f"{resource_id} is to be attached to {node.instance_id}.", now)
    wake(session, attachment, now=now)
    return attachment


def request_detachment(session: Session, node: Node, attachment: Attachment, *, now: datetime) -> None:
    """Asks for the end of a locked attachment. Asking again changes nothing."""
    if attachment.state is AttachmentState.DETACHING:
        return
    record(session, node, f"{attachment.kind} detachment requested", f"{attachment.resource_id} is to be detached.", now)
    move(session, ATTACHMENT, attachment, AttachmentState.DETACHING, now=now)


def settle_attachment(
    session: Session, node: Node, attachment: Attachment, new: AttachmentState, *, why: str, now: datetime
) -> None:
    """Concludes an attachment's state; its node is not locked, and not changed."""
    if attachment.state is new:
        attachment.message = why
        return
    is_trouble = new is AttachmentState.BUSY or (
        new is AttachmentState.DETACHED and attachment.state in (AttachmentState.ATTACHING, AttachmentState.BUSY)
    )
    move(session, ATTACHMENT, attachment, new, now=now)
    attachment.message = why if is_trouble else None
    record(session, node, f"{attachment.kind} {new}", why, now, level=Level.WARN if is_trouble else Level.INFO)


def settle_node_gone(session: Session, node: Node, *, now: datetime) -> None:
    """The host is gone, and with it what was attached to it: each attachment's own plan sees to that."""
    for attachment in queries.of_node(session, node.id):
        wake(session, attachment, now=now)
