"""Writes of faults."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import events
from models.events import About, Level
from models.fault import queries
from models.fault.states import FAULT, FaultKind, FaultState
from models.fault.table import Fault
from models.ids import ClusterId, InstanceId, JobId, NodeId, ProcessId, new_fault_id
from models.move import advance
from models.node.states import NodeState
from models.node.table import Node
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify, notify_all


@dataclass(frozen=True)
class FaultWish:
    """Exactly what is to be struck: a process of a job, the whole node, its copy of a shard, or one of its accelerators."""

    kind: FaultKind
    target: str
    cluster_id: ClusterId
    node_id: NodeId
    instance_id: InstanceId | None
    group_name: str | None = None
    job_id: JobId | None = None
    process_id: ProcessId | None = None
    seconds: float | None = None
    namespace: str | None = None
    step: int | None = None
    shard: int | None = None
    code: int | None = None
    device: int | None = None


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
        namespace=wish.namespace,
        step=wish.step,
        shard=wish.shard,
        code=wish.code,
        device=wish.device,
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


def request_outage(session: Session, *, target: str, seconds: float | None, by: str, now: datetime) -> Fault:
    """From this commit on every call to the object store fails, for ``seconds`` or until it is cleared."""
    fault = Fault(
        id=new_fault_id(),
        kind=FaultKind.BUCKET_OUTAGE,
        target=target,
        seconds=seconds,
        state=FAULT.initial,
        state_since=now,
        requested_by=by,
        created_at=now,
        struck_at=now,
    )
    session.add(fault)
    advance(FAULT, fault, FaultState.HOLDING, now=now)
    session.flush()
    _tell(session, fault, "fault requested", f"{by} asked for an outage of the object store: every call to it fails.", now)
    _wake_everybody(session)
    return fault


def settle_outages(session: Session, *, now: datetime) -> int:
    """Ends the outages whose time is over; returns how many."""
    due = queries.outages_due(session, now=now)
    for fault in due:
        _end_outage(session, fault, now)
    return len(due)


def request_clear(session: Session, fault: Fault, *, is_node_gone: bool, now: datetime) -> None:
    """Asks for the end of a locked fault. Asking again, or for one that has struck or ended, changes nothing."""
    if fault.state not in (FaultState.WANTED, FaultState.HOLDING, FaultState.ENDING):
        return
    if fault.node_id is None:
        _end_outage(session, fault, now)
    elif is_node_gone:
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


def _end_outage(session: Session, fault: Fault, now: datetime) -> None:
    _end(fault, FaultState.ENDED, now)
    session.flush()
    _tell(session, fault, "fault ended", "The outage of the object store is over.", now)
    _wake_everybody(session)


def _wake_everybody(session: Session) -> None:
    """The plan of every node's memory tier says whether the store is out."""
    notify_all(
        session, CHANNEL, session.scalars(select(Node.id).where(Node.state.not_in((NodeState.REQUESTED, NodeState.GONE)))).all()
    )


def _end(fault: Fault, state: FaultState, now: datetime) -> None:
    advance(FAULT, fault, state, now=now)
    if FAULT.is_terminal(state):
        fault.ended_at = now


def _tell(session: Session, fault: Fault, name: str, description: str, now: datetime, wish: FaultWish | None = None) -> None:
    events.record(
        session,
        name,
        description,
        about=_about(fault),
        level=Level.WARN,
        cluster_id=fault.cluster_id,
        job_id=fault.job_id,
        node_id=fault.node_id,
        instance_id=wish.instance_id if wish else None,
        group_name=wish.group_name if wish else None,
        details={"fault": fault.id, "kind": fault.kind.value, "target": fault.target},
        now=now,
    )


def _about(fault: Fault) -> About:
    if fault.node_id is None:
        return About.CLUSTER  # of all of them: it has none of its own
    return About.JOB if fault.job_id else About.INSTANCE
