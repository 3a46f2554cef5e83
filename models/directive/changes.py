"""Writes of directives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.directive.states import CURRENT, DIRECTIVE, DirectiveState
from models.directive.table import Directive
from models.ids import JobId, NodeId
from models.move import advance
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify
from models.session import locked


def settle_assignment(session: Session, node_id: NodeId, job_id: JobId, assignment: dict[str, Any], *, now: datetime) -> None:
    """Says what the node should run for the job from now on. The same assignment again changes nothing."""
    wanted = select(Directive).where(Directive.node_id == node_id, Directive.job_id == job_id, Directive.state.in_(CURRENT))
    present = session.scalars(locked(wanted)).one_or_none()
    if present is not None and present.assignment == assignment:
        return
    if present is not None:
        advance(DIRECTIVE, present, DirectiveState.SUPERSEDED, now=now)
        session.flush()
    session.add(Directive(node_id=node_id, job_id=job_id, state=DIRECTIVE.initial, assignment=assignment, issued_at=now))
    session.flush()
    notify(session, CHANNEL, node_id)


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
