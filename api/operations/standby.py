"""What a node of a spare pool holds itself ready for."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from everstep.protocol import Assignment
from everstep.standby import Expected, Standby
from models.cluster.table import InstanceGroup
from models.directive.table import Directive
from models.job.states import ENDED, JobState
from models.job.table import Job
from models.node.table import Node

MOST_JOBS = 4
"""Of the newest jobs of a cluster: each that differs from the others in its variables costs a process that has torch imported."""


def standby(session: Session, node: Node) -> Standby | None:
    """None for a node whose group never had a pool: nothing has to be told there."""
    group = session.get(InstanceGroup, node.group_id)
    if group is None or group.spare_nodes is None:
        return None
    return Standby(tuple(_expected(session, node)) if group.spare_nodes else ())


def _expected(session: Session, node: Node) -> list[Expected]:
    """By what the jobs' nodes were told last."""
    live = select(Job.id).where(Job.cluster_id == node.cluster_id, Job.state.not_in({*ENDED, JobState.QUEUED}))
    newest = session.scalars(live.order_by(Job.created_at.desc(), Job.id).limit(MOST_JOBS)).all()
    told = select(Directive).where(Directive.job_id.in_(newest)).ext(distinct_on(Directive.job_id))
    found = []
    for directive in session.scalars(told.order_by(Directive.job_id, Directive.id.desc())):
        assignment = Assignment.from_wire(directive.assignment)
        found.append(Expected(assignment.launch, is_alone=assignment.launch.is_plain and len(assignment.processes) == 1))
    return found
