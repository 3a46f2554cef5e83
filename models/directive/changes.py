"""Writes of directives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from models.directive.states import CURRENT, DIRECTIVE, DirectiveState
from models.directive.table import Directive
from models.ids import JobId, NodeId
from models.move import advance
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify_all
from models.session import locked


def settle_assignment(session: Session, node_id: NodeId, job_id: JobId, assignment: dict[str, Any], *, now: datetime) -> None:
    """Says what the node should run for the job from now on. The same assignment again changes nothing."""
    settle_assignments(session, job_id, {node_id: assignment}, now=now)


def settle_assignments(session: Session, job_id: JobId, assignments: Mapping[NodeId, dict[str, Any]], *, now: datetime) -> None:
    """Says what nodes should run for a job from now on, in a handful of statements however many there are.

    The same assignment again changes nothing. The directives are locked in the order of their nodes' ids.
    """
    wanted = select(Directive).where(Directive.job_id == job_id, Directive.node_id.in_(assignments), Directive.state.in_(CURRENT))
    present = {directive.node_id: directive for directive in session.scalars(locked(wanted.order_by(Directive.node_id)))}
    fresh = [node_id for node_id in sorted(assignments) if not _says(present.get(node_id), assignments[node_id])]
    for node_id in fresh:
        if node_id in present:
            advance(DIRECTIVE, present[node_id], DirectiveState.SUPERSEDED, now=now)
    session.flush()
    if fresh:
        facts = {"job_id": job_id, "state": DIRECTIVE.initial, "issued_at": now}
        session.execute(insert(Directive), [{"node_id": node_id, "assignment": assignments[node_id], **facts} for node_id in fresh])
        notify_all(session, CHANNEL, fresh)


def _says(directive: Directive | None, assignment: dict[str, Any]) -> bool:
    return directive is not None and directive.assignment == assignment


def settle_withdrawn(session: Session, node_id: NodeId, job_id: JobId | None, new: DirectiveState, *, now: datetime) -> None:
    """Ends the node's current directives (for one job, or all): done when nothing is left to do, expired when the node is gone."""
    wanted = select(Directive).where(Directive.node_id == node_id, Directive.state.in_(CURRENT))
    if job_id is not None:
        wanted = wanted.where(Directive.job_id == job_id)
    for directive in session.scalars(locked(wanted.order_by(Directive.id))):
        advance(DIRECTIVE, directive, new, now=now)
    session.flush()


def report_delivered(session: Session, ids: Sequence[int], *, now: datetime) -> None:
    """These directives were written to their node's stream. One that has been superseded or ended meanwhile stays so."""
    wanted = select(Directive).where(Directive.id.in_(ids), Directive.state == DirectiveState.ISSUED)
    for directive in session.scalars(locked(wanted.order_by(Directive.id))):
        advance(DIRECTIVE, directive, DirectiveState.DELIVERED, now=now)
        directive.delivered_at = now
    session.flush()
