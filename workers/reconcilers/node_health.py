"""The health of nodes: what is seen of it, and how a plan's conclusions are written down. Every decision is in ``workers.plans.repair``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.cluster.table import Cluster, InstanceGroup
from models.condition import changes, queries
from models.condition.states import ConditionState, FaultClass, Repair
from models.condition.table import Condition, RepairHold
from models.health import changes as health_changes
from models.health import queries as health
from models.health.states import CheckState
from models.ids import new_hold_id
from models.job import queries as jobs
from models.job.changes import request_restart_of
from models.node import changes as nodes
from models.node import wishes
from models.node.labels import DEEP_CHECK, Worn, declared_before, declared_in
from models.node.states import RESTARTING
from models.node.table import Node
from workers.plans import brake
from workers.plans import repair_seen as plans
from workers.plans.brake import Brake, HoldRepairs, Limits, TroubleSeen
from workers.plans.repair import repair_of
from workers.plans.repair_seen import Policy

_HELD_BACK = (Repair.REBOOT, Repair.REPLACE)
_CHECKS: Final = {health_changes.EXAMINED: "InProgress", health_changes.UNFIT: "Failed"}
_BY_STATE: Final = {CheckState.PASSED: "Passed", CheckState.FAILED: "Failed"}


def observe(
    session: Session, node: Node, group: InstanceGroup, cluster: Cluster, policy: Policy, now: datetime
) -> plans.HealthSeen:
    """The node is locked, and so its conditions do not change meanwhile."""
    rows = queries.open_of(session, node.id)
    conditions = tuple(_seen(session, row, policy, now) for row in rows)
    may_block = any(one.state is not ConditionState.REPAIRING and repair_of(one, policy) in _HELD_BACK for one in conditions)
    return plans.HealthSeen(
        state=node.state,
        schedulability=node.schedulability,
        conditions=conditions,
        is_wanted=node.is_wanted,
        is_free=node.restart is None and node.move_to is None and node.state not in RESTARTING,
        has_reboot_to_call_off=bool(node.facts.get(wishes.IS_REPAIR)),
        is_busy=bool(rows) and bool(jobs.on_node(session, node.id)),
        starts=node.starts,
        leave_by=node.leave_by,
        leave_why=node.leave_why,
        is_recovered=cluster.settings.get("NodeRecovery") != "None",
        brake=brake_of(session, group, policy.limits, now) if may_block else brake.OPEN,
        worn=Worn(dict(node.labels), tuple(dict(taint) for taint in node.taints)),
        declared=declared_in(group.spec.get("KubernetesConfig")),
        declared_before=declared_before(node.facts),
        deep_check=_deep_check(session, node),
        is_kept_from_work=node.held_for in _CHECKS,
        replaced=queries.replaced_before(session, node, since=now - policy.window) if rows else 0,
        policy=policy,
    )


def brake_of(session: Session, group: InstanceGroup, limits: Limits, now: datetime) -> Brake:
    """Whether repairs of the group are held back. As long as a hold is open its own reconciler counts, and nobody else does.

    Those who count do so one after another, and a repair that begins is counted by the next: else as many could begin at once as there are
    workers. The lock comes after a node's row; who waits for it holds no other lock that its holder might want.
    """
    hold = queries.hold_of(session, group.id)
    if hold is not None and hold.ended_at is None and now < hold.created_at + limits.patience:
        return Brake(hold.why)
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"repair:{group.id}", 0))))
    hold = queries.hold_of(session, group.id)
    return brake.brake(trouble_seen(session, group, hold, limits, now), limits, now)


def trouble_seen(session: Session, group: InstanceGroup, hold: RepairHold | None, limits: Limits, now: datetime) -> TroubleSeen:
    found = queries.trouble(session, group.id, target=group.target_count, since=now - limits.window)
    return TroubleSeen(
        target=found.target,
        places=found.places,
        healing=found.healing,
        all_suspects=found.all_suspects,
        all_serving=found.all_serving,
        held_since=hold.created_at if hold is not None and hold.ended_at is None else None,
        resumed_until=hold.resumed_until if hold is not None else None,
    )


def settle(session: Session, node: Node, action: Any, now: datetime) -> bool:
    """Writes an action of the node's health plan; False if it is none."""
    return _settle_condition(session, node, action, now) or _settle_node(session, node, action, now)


def _settle_condition(session: Session, node: Node, action: Any, now: datetime) -> bool:
    match action:
        case plans.Conclude(condition=condition, new=new, why=why, repair=repair):
            row = session.get_one(Condition, condition)
            if repair is not None:
                changes.settle_repair(row, repair)
            changes.settle_condition(session, node, row, new, why=why, now=now)
        case plans.RestartProcess(condition=condition, why=why):
            _restart_process(session, node, session.get_one(Condition, condition), why, now)
        case plans.Remind(condition=condition, why=why):
            changes.settle_reminder(session, node, session.get_one(Condition, condition), why=why, now=now)
        case HoldRepairs(why=why):
            _hold(session, node, why, now)
        case _:
            return False
    return True


def _settle_node(session: Session, node: Node, action: Any, now: datetime) -> bool:
    match action:
        case plans.Mark(schedulability=schedulability, why=why):
            nodes.settle_schedulability(session, node, schedulability, why=why, now=now)
        case plans.Leave(by=by, why=why):
            nodes.settle_leaving(session, node, by=by, why=why, now=now)
        case plans.Stay(why=why):
            nodes.settle_staying(session, node, why=why, now=now)
        case plans.Reboot(why=why):
            wishes.request_reboot(session, node, why=why, is_repair=True, now=now)
        case plans.CallOff(why=why):
            wishes.settle_restart_called_off(session, node, why=why, now=now)
        case plans.Replace(why=why, failures=failures):
            wishes.request_replacement(session, node, why=why, failures=failures, now=now)
        case plans.Dress(worn=worn):
            group = session.get_one(InstanceGroup, node.group_id)
            nodes.settle_dressed(session, node, worn, declared=declared_in(group.spec.get("KubernetesConfig")))
        case _:
            return False
    return True


def _hold(session: Session, node: Node, why: str, now: datetime) -> None:
    held = queries.hold_of(session, node.group_id)
    if held is None or held.ended_at is not None:
        fresh = RepairHold(
            id=new_hold_id(),
            cluster_id=node.cluster_id,
            group_id=node.group_id,
            why=why,
            created_at=now,
            told_at=now,
            reconcile_at=now,
        )
        changes.settle_hold(session, node, fresh, now=now)


def _restart_process(session: Session, node: Node, condition: Condition, why: str, now: datetime) -> None:
    """The process that the driver named: one that is not there has ended, or is none of ours. Where it named none, all that the node runs."""
    struck = [process for process in jobs.on_node(session, node.id) if condition.pid in (None, process.pid)]
    for process in sorted(struck, key=lambda process: (process.job_id, process.id)):
        request_restart_of(session, process, why=why, now=now)


def _seen(session: Session, row: Condition, policy: Policy, now: datetime) -> plans.ConditionSeen:
    counts = row.fault_class in (FaultClass.REBOOT, FaultClass.TRANSIENT, FaultClass.UNKNOWN)
    is_transient = row.fault_class is FaultClass.TRANSIENT
    return plans.ConditionSeen(
        id=row.id,
        state=row.state,
        state_since=row.state_since,
        fault_class=row.fault_class,
        code=row.code,
        told_at=row.told_at,
        source=row.source,
        type=row.type,
        reason=row.reason,
        seen=row.seen,
        start=row.start,
        reboots=queries.reboots_before(session, row, since=now - policy.window) if counts else 0,
        struck=queries.struck(session, row, since=row.created_at - policy.window) if is_transient else (),
    )


def _deep_check(session: Session, node: Node) -> Mapping[str, str]:
    """The newest outcome is looked for only when the word that the node wears may be out of date; without one it wears none."""
    shown = _CHECKS.get(node.held_for or "", node.labels.get(DEEP_CHECK))
    if node.held_for not in _CHECKS and shown in _CHECKS.values():
        state = health.newest_outcome(session, node.id)
        shown = None if state is None else _BY_STATE[state]
    return {} if shown is None else {DEEP_CHECK: str(shown)}
