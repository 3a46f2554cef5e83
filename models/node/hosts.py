"""Writes of what providers say of a node's host, beside its states."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from models.node.states import CapacityType, NodeState
from models.node.table import Node


def settle_placed(
    session: Session, node: Node, *, instance_type: str | None, capacity_type: CapacityType, zone: str | None
) -> None:
    """What the host is, how it is paid for, and where it stands; what its provider does not say stays as it was.

    The type may be another one than the node is asked for as by now: the launch was under way when the wish changed.
    """
    node.instance_type = instance_type or node.instance_type
    node.capacity_type = capacity_type
    node.zone = zone or node.zone
    session.flush()


def settle_postponed(session: Session, node: Node, *, until: datetime) -> None:
    """The provider wants to be left alone until then: no obstacle, and no try of a launch."""
    if node.state is NodeState.REQUESTED:
        node.facts = {**node.facts, "launch_after": until.isoformat()}
        session.flush()
