"""Writes of conditions: what agents and operators say of a node, and what its reconciler makes of it. A node's lock guards its conditions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.orm import Session

from models import events
from models.condition import queries
from models.condition.states import CONDITION, OPEN, ConditionState, FaultClass, Repair, Source
from models.condition.table import Condition, RepairHold
from models.events import About, Level
from models.ids import new_condition_id
from models.move import advance, wake
from models.node.states import STARTED_ANEW, NodeState
from models.node.table import Node
from models.text import storable

COUNT: Final = "count"
"""The code of devices that are missing."""
MONITOR: Final = "monitor"
"""The code of a monitor that cannot tell: never repaired, never healthy."""
_EVIDENCE = 1024


@dataclass(frozen=True)
class Finding:
    """A fault as it was seen. ``occurrence`` names it once and for all; ``is_certain``: it needs no second look."""

    occurrence: str
    fault_class: FaultClass
    code: str
    type: str
    reason: str
    evidence: str
    at: datetime
    source: Source = Source.AGENT
    vendor: str | None = None
    device: str | None = None
    pid: int | None = None
    is_certain: bool = True
    happened_at: datetime | None = None
    """As ``at``, by our own clock as far as its teller's is known; None: as good as now."""


def report_fault(session: Session, node: Node, finding: Finding, *, now: datetime) -> Condition | None:
    """Something is the matter with a locked node. None if that is known already: told twice, or once more while it is open.

    None too if its host goes: nobody would repair it, and nothing would end what is written.

    One that is open and has the same code on the same device grows its count, and becomes certain if this one is.
    """
    if node.state in (NodeState.RELEASING, NodeState.GONE) or queries.occurrence(session, node.id, finding.occurrence) is not None:
        return None
    same = _same(session, node, finding)
    if same is not None:
        same.seen += 1
        if finding.is_certain and same.state is ConditionState.SUSPECTED:
            settle_condition(session, node, same, ConditionState.CONFIRMED, why=_shown(finding) or "It is certain by now.", now=now)
        wake(session, node, now=now)
        return None
    condition = _written(session, node, finding, now)
    if finding.is_certain:
        advance(CONDITION, condition, ConditionState.CONFIRMED, now=now)
    text = f"{finding.type}: {finding.reason} ({finding.code}{_on(finding.device)})"
    text = f"{text}: {shown}" if (shown := _shown(finding)) else f"{text}."
    _record(session, node, condition, "fault reported" if finding.is_certain else "fault suspected", text, now, level=Level.WARN)
    session.flush()
    wake(session, node, now=now)
    return condition


def report_well(session: Session, node: Node, code: str, *, why: str, now: datetime) -> None:
    """What was only suspected of a locked node is not so, or not any more. What a count found is over too, unless its repair has begun."""
    for condition in queries.open_of(session, node.id):
        is_over = condition.source is Source.CHECK and condition.state in (ConditionState.CONFIRMED, ConditionState.HELD)
        if condition.code == code and (is_over or condition.state is ConditionState.SUSPECTED):
            _settle_over(session, node, condition, why=why, now=now)
            wake(session, node, now=now)


def settle_condition(session: Session, node: Node, condition: Condition, new: ConditionState, *, why: str, now: datetime) -> None:
    """Concludes a condition of a locked node, with its event."""
    advance(CONDITION, condition, new, now=now)
    condition.why = why
    condition.told_at = now
    if CONDITION.is_terminal(new):
        condition.ended_at = now
    level = Level.INFO if CONDITION.is_terminal(new) else Level.WARN
    _record(session, node, condition, f"condition {new}", f"{condition.type} ({condition.code}): {why}", now, level=level)
    session.flush()


def settle_repair(condition: Condition, repair: Repair) -> None:
    """What is to be done about it."""
    condition.repair = repair


def settle_reminder(session: Session, node: Node, condition: Condition, *, why: str, now: datetime) -> None:
    """Nothing has changed for long: people are told again, so that no node is forgotten."""
    condition.told_at = now
    _record(session, node, condition, "condition lasts", f"{condition.type} ({condition.code}): {why}", now, level=Level.WARN)
    session.flush()


def settle_all_over(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """The locked node's host goes, or somebody has said that all is well: nothing is the matter any more."""
    for condition in queries.open_of(session, node.id):
        _settle_over(session, node, condition, why=why, now=now)


def settle_hold(session: Session, node: Node, hold: RepairHold, *, now: datetime) -> None:
    """Repairs of the node's group are held back from now on. The caller has made sure that no other hold of the group is open."""
    session.add(hold)
    session.flush()
    _tell_hold(session, hold, node.group_name, "repairs held", hold.why, now)
    wake(session, hold, now=now)


def settle_hold_lasts(session: Session, hold: RepairHold, group_name: str, *, why: str, now: datetime) -> None:
    """Nothing has changed for long: people are asked again."""
    hold.told_at = now
    _tell_hold(session, hold, group_name, "repairs still held", why, now)
    session.flush()


def settle_hold_over(session: Session, hold: RepairHold, group_name: str, *, why: str, now: datetime) -> None:
    """Repairs of the group go on."""
    hold.ended_at, hold.ended_why = now, why
    _tell_hold(session, hold, group_name, "repairs resumed", why, now, level=Level.INFO)
    session.flush()


def request_resumption(
    session: Session, hold: RepairHold, group_name: str, *, why: str, free_for: timedelta, now: datetime
) -> None:
    """Somebody has looked, and wants the repairs of the group to go on: nothing is held back for so long."""
    hold.resumed_until = now + free_for
    settle_hold_over(session, hold, group_name, why=why, now=now)
    wake(session, hold, now=now)


def _shown(finding: Finding) -> str:
    """The evidence as events tell it, which outlive what runs on a node: a line that names a process is the condition's own affair."""
    return finding.evidence if finding.pid is None else ""


def _same(session: Session, node: Node, finding: Finding) -> Condition | None:
    return next(
        (
            one
            for one in queries.open_of(session, node.id)
            if one.code == finding.code
            and one.device == finding.device
            and one.source is finding.source
            and one.start == _start(node, finding)
        ),
        None,
    )


def _start(node: Node, finding: Finding) -> int:
    """At which start of the host it happened: what is told late, after a new start, may be what that start has cured.

    An agent tells of no later start than its own. A host that must go must go however often it was started.
    """
    if finding.fault_class is FaultClass.REPLACE:
        return node.starts
    asked_at = node.facts.get(STARTED_ANEW)
    is_before = finding.happened_at is not None and asked_at is not None and finding.happened_at < datetime.fromisoformat(asked_at)
    return min(node.boot_start, node.starts - 1 if is_before else node.starts)


def _settle_over(session: Session, node: Node, condition: Condition, *, why: str, now: datetime) -> None:
    """Ends a condition. A repair that was decided and never came about is not remembered as one."""
    is_begun = condition.state is ConditionState.REPAIRING and (
        condition.repair is not Repair.REBOOT or node.starts > condition.start
    )
    if condition.repair is not None and not is_begun:
        settle_repair(condition, Repair.NOTHING)
    new = ConditionState.WITHDRAWN if condition.state is ConditionState.SUSPECTED else ConditionState.RESOLVED
    settle_condition(session, node, condition, new, why=why, now=now)


def _is_asked(source: Source) -> bool:
    return source is Source.OPERATOR


def _written(session: Session, node: Node, finding: Finding, now: datetime) -> Condition:
    condition = Condition(
        id=new_condition_id(),
        cluster_id=node.cluster_id,
        node_id=node.id,
        logical_id=node.logical_id,
        instance_id=node.instance_id,
        occurrence=finding.occurrence,
        source=finding.source,
        state=CONDITION.initial,
        state_since=now,
        fault_class=finding.fault_class,
        type=finding.type,
        reason=finding.reason,
        code=finding.code,
        vendor=finding.vendor,
        device=finding.device,
        pid=finding.pid,
        evidence=storable(finding.evidence)[:_EVIDENCE],
        start=_start(node, finding),
        at=finding.at,
        created_at=now,
        told_at=now,
    )
    session.add(condition)
    session.flush()
    return condition


def _on(device: str | None) -> str:
    return f" on {device}" if device else ""


def _record(
    session: Session, node: Node, condition: Condition, name: str, description: str, now: datetime, *, level: Level
) -> None:
    """With the members of HyperPod's health event."""
    is_open = condition.state in OPEN
    events.record(
        session,
        name,
        description,
        about=About.INSTANCE,
        level=level,
        cluster_id=node.cluster_id,
        group_name=node.group_name,
        instance_id=node.instance_id,
        node_id=node.id,
        operation_id=node.operation_id,
        details={
            "logical_id": node.logical_id,
            "condition": condition.id,
            "type": condition.type,
            "reason": condition.reason,
            "code": condition.code,
            "HealthStatus": "Unhealthy" if is_open else "Healthy",
            "HealthStatusReason": condition.reason,
            "RepairAction": (condition.repair or Repair.NOTHING).value,
        }
        | ({"device": condition.device} if condition.device else {}),
        now=now,
    )


def _tell_hold(
    session: Session, hold: RepairHold, group_name: str, name: str, description: str, now: datetime, *, level: Level = Level.ERROR
) -> None:
    events.record(
        session,
        name,
        description,
        about=About.GROUP,
        level=level,
        cluster_id=hold.cluster_id,
        group_name=group_name,
        details={"hold": hold.id},
        now=now,
    )
