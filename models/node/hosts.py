"""Writes of what is wished of a node's host, and of what its provider says of it, beside the node's states."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from models.events import Level
from models.node.changes import record, wake_host
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


def settle_other_type(session: Session, node: Node, instance_type: str, *, why: str, is_at_once: bool, now: datetime) -> None:
    """The host that is wished for is to be of another type, unless it has been launched by now. Unless at once, the pause after the latest try goes on."""
    if node.state is not NodeState.REQUESTED:
        return
    dropped = {"obstacle", "launch_tried_at"} if is_at_once else {"obstacle"}
    node.facts = {name: fact for name, fact in node.facts.items() if name not in dropped}
    node.instance_type = instance_type
    record(session, node, "another type", f"{why} The node is asked for as {instance_type}.", now)
    wake_host(session, node, now=now)


def settle_put_off(session: Session, node: Node, *, until: datetime, why: str, now: datetime) -> None:
    """The host that is wished for, and not launched by now, is not asked for before ``until``; the reason is told when it is news."""
    if node.state is not NodeState.REQUESTED:
        return
    is_news = node.facts.get("obstacle") != why
    node.facts = {**node.facts, "obstacle": why, "launch_after": until.isoformat()}
    node.message = why
    if is_news:
        record(session, node, "launch put off", why, now, level=Level.WARN)
    session.flush()
