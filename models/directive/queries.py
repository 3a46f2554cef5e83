"""Reads of directives."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.directive.states import CURRENT
from models.directive.table import Directive


def of_job(session: Session, job_id: str) -> list[Directive]:
    """What all nodes were told to run for a job; a directive a node."""
    return list(session.scalars(select(Directive).where(Directive.job_id == job_id, Directive.state.in_(CURRENT))))


def current(session: Session, node_id: str, *, after: int = 0) -> list[Directive]:
    """What the node should run, a directive a job, issued after the directive ``after``; oldest first."""
    wanted = select(Directive).where(Directive.node_id == node_id, Directive.state.in_(CURRENT), Directive.id > after)
    return list(session.scalars(wanted.order_by(Directive.id)))
