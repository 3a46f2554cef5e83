"""Writes of faults."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from models import events
from models.events import About, Level
from models.fault.states import FAULT, FaultKind, FaultState
from models.fault.table import Fault
from models.ids import ClusterId, InstanceId, JobId, NodeId, ProcessId, new_fault_id
from models.move import advance
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify


@dataclass(frozen=True)
class FaultWish:
    """Exactly what is to be struck: a process of a job, or the whole node."""

    kind: FaultKind
    target: str
    cluster_id: ClusterId
    node_id: NodeId
    instance_id: InstanceId | None
    group_name: str | None = None
    job_id: JobId | None = None
    process_id: ProcessId | None = None
    seconds: float | None = None


def request_fault(session: Session, wish: FaultWish, *, by: str, now: datetime) -> Fault:
    """Asks the node's agent to strike, as soon as this is committed."""
    fault = Fault(
        id=new_fault_id(),
        kind=wish.kind,
        target=wish.target,
        cluster_id=wish.cluster_id,
        node_id=wish.node_id,
        job_id=wish.job_id,
        process_id=wish.process_id,
        seconds=wish.seconds,
        state=FAULT.initial,
        state_since=now,
        requested_by=by,
        created_at=now,
    )
    session.add(fault)
    session.flush()
    _tell(session, fault, "fault requested", f"{by} asked for the fault {wish.kind} of {wish.target}.", now, wish)
    notify(session, CHANNEL, wish.node_id)
    return fault


def request_clear(session: Session, fault: Fault, *, is_node_gone: bool, now: datetime) -> None:
    """Asks for the end of a locked fault. Asking again, or for one that has struck or ended, changes nothing."""
    if fault.state not in (FaultState.WANTED, FaultState.HOLDING, FaultState.ENDING):
        return
    if is_node_gone:
        _end(fault, FaultState.ENDED, now)
    elif fault.state is not FaultState.ENDING:
        advance(FAULT, fault, FaultState.ENDING, now=now)
        notify(session, CHANNEL, fault.node_id)
    session.flush()


def report_fault(session: Session, fault: Fault, state: FaultState, *, note: str | None, now: datetime) -> None:
    """What came of a locked fault, by the node's agent. A report that says nothing new changes nothing."""
    if fault.state is state or FAULT.is_terminal(fault.state) or (fault.state, state) == (FaultState.ENDING, FaultState.HOLDING):
        return
    has_struck = state in (FaultState.STRUCK, FaultState.HOLDING)
    _end(fault, state, now)
    fault.note = note
    fault.struck_at = now if has_struck else fault.struck_at
    session.flush()
    words = {FaultState.STRUCK: "has struck", FaultState.HOLDING: "has struck", FaultState.ENDED: "is over"}
    _tell(session, fault, f"fault {state}", f"The fault {fault.kind} of {fault.target} {words.get(state, 'has missed')}.", now)


def _end(fault: Fault, state: FaultState, now: datetime) -> None:
    advance(FAULT, fault, state, now=now)
    if FAULT.is_terminal(state):
        fault.ended_at = now


def _tell(session: Session, fault: Fault, name: str, description: str, now: datetime, wish: FaultWish | None = None) -> None:
    events.record(
        session,
        name,
        description,
        about=About.JOB if fault.job_id else About.INSTANCE,
        level=Level.WARN,
        cluster_id=fault.cluster_id,
        job_id=fault.job_id,
        node_id=fault.node_id,
        instance_id=wish.instance_id if wish else None,
        group_name=wish.group_name if wish else None,
        details={"fault": fault.id, "kind": fault.kind.value, "target": fault.target},
        now=now,
    )
