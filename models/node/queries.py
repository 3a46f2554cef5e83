"""Reads of nodes."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.errors import NotFound, Unauthenticated
from models.ids import digest
from models.node.states import NodeState
from models.node.table import Node


def get(session: Session, node_id: str, *, lock: bool = False) -> Node:
    """Raises NotFound."""
    wanted = select(Node).where(Node.id == node_id)
    row = session.scalars(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Node", name=node_id)
    return row


def of_cluster(session: Session, cluster_id: str) -> list[Node]:
    """A cluster's nodes, oldest first, without those that are gone."""
    wanted = select(Node).where(Node.cluster_id == cluster_id, Node.state != NodeState.GONE)
    return list(session.scalars(wanted.order_by(Node.created_at, Node.id)))


def by_instance(session: Session, instance_id: str, *, lock: bool = False) -> Node:
    """The node that is not gone and runs on this instance. Raises NotFound."""
    wanted = select(Node).where(Node.instance_id == instance_id, Node.state != NodeState.GONE)
    row = session.scalars(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Node", name=instance_id)
    return row


def by_token(session: Session, token: str) -> Node:
    """The node whose agent holds this node token.

    Raises:
        Unauthenticated: no live node's token, which also ends the agent of a node that is gone.
    """
    row = session.scalars(select(Node).where(Node.node_token_digest == digest(token), Node.state != NodeState.GONE)).one_or_none()
    if row is None:
        raise Unauthenticated
    return row
