"""What a node's jobs say of it while its agent is not heard: a step that was committed took a process of every node that has a rank."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from models.job import queries as jobs
from models.node.table import Node

_LATELY = timedelta(seconds=30)
_STRIDES = 5
"""A job whose last step is that many of its steps ago stands still."""


def goes_on(session: Session, node: Node, now: datetime) -> bool | None:
    """Whether work on the node goes on; None where nobody could tell: it has not begun, or the one who tells of it is not heard either."""
    if not jobs.on_node(session, node.id):
        return False
    said = []
    for stride in jobs.strides(session, node.id):
        teller = session.get(Node, stride.teller)
        if now - stride.at <= max(_LATELY, timedelta(seconds=stride.seconds * _STRIDES)):
            said.append(True)
        elif teller is not None and teller.stream_lost_at is None and teller.id != node.id:
            said.append(False)
    return any(said) if said else None
