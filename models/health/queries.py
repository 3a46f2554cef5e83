"""Reads of deep health checks."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.cluster.table import InstanceGroup
from models.health.states import CheckState
from models.health.table import HealthCheck, NodeCheck
from models.node.table import Node
from models.session import locked

_HEADS = ("Controller", "Login")
"""Slurm's words for nodes that run no jobs, and are not examined."""


def runs_jobs(group: InstanceGroup) -> bool:
    return group.spec.get("SlurmConfig", {}).get("NodeType") not in _HEADS


def on_demand(session: Session, cluster_id: str) -> HealthCheck | None:
    """The one that somebody asked of the cluster and that is not over."""
    wanted = select(HealthCheck).where(
        HealthCheck.cluster_id == cluster_id, HealthCheck.ended_at.is_(None), HealthCheck.operation_id.is_not(None)
    )
    return session.scalars(wanted).one_or_none()


def of_check(session: Session, health_check_id: str) -> list[NodeCheck]:
    wanted = select(NodeCheck).where(NodeCheck.health_check_id == health_check_id)
    return list(session.scalars(wanted.order_by(NodeCheck.sequence)))


def asked_of_node(session: Session, node_id: str) -> list[NodeCheck]:
    """What the node's agent is to examine, oldest first."""
    wanted = select(NodeCheck).where(NodeCheck.node_id == node_id, NodeCheck.state == CheckState.ASKED)
    return list(session.scalars(wanted.order_by(NodeCheck.sequence)))


def was_examined(session: Session, node_id: str) -> bool:
    return session.scalars(select(NodeCheck.id).where(NodeCheck.node_id == node_id).limit(1)).first() is not None


def newest_outcome(session: Session, node_id: str) -> CheckState | None:
    """Whether a node passed or failed when it was last examined, None if it never was: one that was skipped says nothing."""
    outcomes = (CheckState.PASSED, CheckState.FAILED)
    wanted = select(NodeCheck.state).where(NodeCheck.node_id == node_id, NodeCheck.state.in_(outcomes))
    return session.scalars(wanted.order_by(NodeCheck.sequence.desc()).limit(1)).first()


def measured(session: Session, node: Node, *, limit: int = 32) -> dict[str, list[float]]:
    """What the other nodes of a node's group, of the same type, have measured lately: the values of each finding that has a name."""
    others = (Node.group_id == node.group_id, Node.instance_type == node.instance_type, Node.id != node.id)
    wanted = select(NodeCheck.findings).join(Node, Node.id == NodeCheck.node_id).where(*others)
    wanted = wanted.where(NodeCheck.state.in_((CheckState.PASSED, CheckState.FAILED)))
    found: dict[str, list[float]] = {}
    for findings in session.scalars(wanted.order_by(NodeCheck.sequence.desc()).limit(limit)):
        for finding in findings:
            if finding.get("name") and finding.get("measured") is not None:
                found.setdefault(finding["name"], []).append(finding["measured"])
    return found


def get(session: Session, check_id: str) -> NodeCheck | None:
    """Locked."""
    return session.scalars(locked(select(NodeCheck).where(NodeCheck.id == check_id))).one_or_none()
