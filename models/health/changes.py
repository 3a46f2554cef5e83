"""Writes of deep health checks.

A check's row is locked before its cluster's, by its own reconciler alone; a node's examination after the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from models import events
from models.cluster.table import Cluster
from models.events import About, Level
from models.health.states import CHECK, CheckKind, CheckState
from models.health.table import HealthCheck, NodeCheck
from models.ids import ClusterId, NodeId, OperationId, new_check_id, new_health_check_id
from models.move import advance, wake
from models.node.changes import record, settle_held
from models.node.states import NodeState
from models.node.table import Node
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify, nudge
from models.operation.changes import request_operation, settle_done
from models.operation.states import OperationKind

EXAMINED = "deep health check"
"""Who holds a node that is examined, or is about to be after its start."""
UNFIT = "failed deep health check"
"""Who holds a node that failed where nobody may replace it: no new work until it is started anew, replaced, or passes."""


@dataclass(frozen=True)
class Wish:
    node: Node
    kinds: tuple[CheckKind, ...]


def request_health_check(
    session: Session, cluster: Cluster, wishes: Sequence[Wish], *, asked: list[dict[str, Any]], now: datetime
) -> HealthCheck:
    """Asks that nodes of a locked cluster are examined; ``asked`` is the caller's wish by wire name."""
    operation_id = request_operation(session, cluster.id, OperationKind.HEALTH_CHECK, details={"checks": asked}, now=now)
    check = _begin(session, cluster.id, wishes, operation_id, now)
    text = f"Deep health checks of {len(wishes)} nodes of cluster {cluster.name} started."
    events.record(
        session, "health check requested", text, about=About.CLUSTER, cluster_id=cluster.id, operation_id=operation_id, now=now
    )
    return check


def settle_started(session: Session, node: Node, kinds: Sequence[CheckKind], *, now: datetime) -> None:
    """A locked node that has just come to serve is examined before it takes work."""
    settle_held(session, node, EXAMINED, now=now)
    _begin(session, node.cluster_id, [Wish(node, tuple(kinds))], None, now)


def settle_asked(session: Session, check: NodeCheck, node: Node, order: Mapping[str, Any], *, now: datetime) -> None:
    """The locked node has no work: its agent is told what to examine."""
    advance(CHECK, check, CheckState.ASKED, now=now)
    check.order = dict(order)
    settle_held(session, node, EXAMINED, now=now)
    record(session, node, "health check started", f"Deep health checks started: {', '.join(check.kinds)}.", now)
    notify(session, CHANNEL, node.id)


def settle_skipped(session: Session, check: NodeCheck, node: Node, *, why: str, now: datetime) -> None:
    """The locked node is not examined, or not any further."""
    advance(CHECK, check, CheckState.SKIPPED, now=now)
    check.why = why
    _give_back(session, node, now)
    record(session, node, "health check skipped", f"Deep health checks were skipped: {why}", now, level=Level.WARN)


def settle_silent(session: Session, check: NodeCheck, node: Node, *, why: str, now: datetime) -> None:
    """No answer came from the locked node."""
    _fail(session, check, node, why, now)


def settle_through(session: Session, node: Node, *, is_unfit: bool, now: datetime) -> None:
    """What follows from the examination of a locked node has been seen to."""
    settle_held(session, node, UNFIT if is_unfit else None, now=now)
    if node.state is NodeState.READY and node.is_wanted:
        node.operation_id = None


def settle_ended(session: Session, check: HealthCheck, *, why: str, now: datetime) -> None:
    """Every node is through."""
    check.ended_at = now
    if check.operation_id is None:
        return
    events.record(
        session,
        "health check ended",
        why,
        about=About.CLUSTER,
        cluster_id=check.cluster_id,
        operation_id=check.operation_id,
        now=now,
    )
    settle_done(session, check.operation_id, now=now)


def report_findings(
    session: Session, node: Node, check: NodeCheck, findings: Sequence[Mapping[str, Any]], *, now: datetime
) -> None:
    """What the agent of a locked node found. Told twice, it changes nothing."""
    if check.state is not CheckState.ASKED:
        return
    check.findings = [dict(finding) for finding in findings]
    failed = [finding["says"] for finding in findings if finding["verdict"] == "failed"]
    if failed:
        _fail(session, check, node, "; ".join(failed), now)
    elif all(finding["verdict"] == "skipped" for finding in findings):
        check.why = "; ".join(finding["says"] for finding in findings) or "it ran none of them"
        advance(CHECK, check, CheckState.SKIPPED, now=now)
        record(session, node, "health check skipped", f"Deep health checks were skipped: {check.why}", now, level=Level.WARN)
    else:
        check.why = "; ".join(finding["says"] for finding in findings)
        advance(CHECK, check, CheckState.PASSED, now=now)
        record(session, node, "health check passed", f"Deep health checks passed: {check.why}", now)
    nudge(session, HealthCheck.KIND, check.health_check_id)


def _begin(
    session: Session, cluster_id: ClusterId, wishes: Sequence[Wish], operation_id: OperationId | None, now: datetime
) -> HealthCheck:
    check = HealthCheck(
        id=new_health_check_id(), cluster_id=cluster_id, operation_id=operation_id, created_at=now, reconcile_at=now
    )
    session.add(check)
    session.flush()
    for wish in wishes:
        if operation_id is not None:
            wish.node.operation_id = operation_id
        session.add(_node_check(check, wish.node.id, wish.kinds, now))
    wake(session, check, now=now)
    return check


def _node_check(check: HealthCheck, node_id: NodeId, kinds: Sequence[CheckKind], now: datetime) -> NodeCheck:
    return NodeCheck(
        id=new_check_id(),
        health_check_id=check.id,
        node_id=node_id,
        kinds=[kind.value for kind in kinds],
        state=CHECK.initial,
        state_since=now,
        created_at=now,
    )


def _fail(session: Session, check: NodeCheck, node: Node, why: str, now: datetime) -> None:
    advance(CHECK, check, CheckState.FAILED, now=now)
    check.why = why
    node.message = f"Deep health checks failed: {why}"
    record(session, node, "health check failed", node.message, now, level=Level.ERROR)


def _give_back(session: Session, node: Node, now: datetime) -> None:
    if node.held_for == EXAMINED:
        settle_held(session, node, None, now=now)
