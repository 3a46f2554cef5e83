"""What a node's agent may do: register, tell, listen. Every function is one transaction of the caller's session.

Locks are taken in the order node, job (sorted), process, which is the order of ``models.move``.
"""

from __future__ import annotations

import hmac
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, union
from sqlalchemy.orm import Session

from api.operations import standby, tiers
from api.settings import Settings
from everstep import protocol
from everstep.notices import Evacuation
from models.access.secrets import boot_token
from models.checkpoint import changes as checkpoint_changes
from models.cluster.table import InstanceGroup
from models.directive import changes as directive_changes
from models.directive import queries as directive_queries
from models.directive.states import DirectiveState
from models.directive.table import Directive
from models.errors import DomainError, Unauthenticated
from models.fault import queries as fault_queries
from models.fault.states import FaultState
from models.fault.table import Fault
from models.health import queries as health_queries
from models.health.states import CheckState
from models.health.table import NodeCheck
from models.ids import JobId, NodeId, ProcessId, digest, new_token
from models.job import queries as job_queries
from models.job import reports as job_reports
from models.job.states import ProcessState
from models.job.table import Job
from models.move import wake
from models.node import beats as node_beats
from models.node import changes as node_changes
from models.node import queries as node_queries
from models.node.states import NodeState
from models.node.table import Node
from models.session import locked

_CHECKS = -(1 << 52)
"""Lines of examinations are numbered below it, those of faults above."""
_EVACUATIONS = -(1 << 56)
"""Lines of a node's leaving are numbered below it."""
_STANDBY = -(1 << 58)
"""Lines of what a node holds itself ready for are numbered below it."""
_PLANS = -(1 << 60)
"""Lines of plans of memory tiers are numbered below it."""
_STREAM = "stream"
"""The fact that names a node's newest directive stream: an older one that closes later must not report the node as cut off."""


class NodeGone(DomainError):
    """This node is gone: end everything that runs on it, and yourself."""


class OtherBoot(DomainError):
    """Another start of this node's agent has registered since; register again."""


@dataclass(frozen=True)
class Arrived:
    """Who registered, and what it is told."""

    node_id: NodeId
    welcome: protocol.Welcome


@dataclass(frozen=True)
class Line:
    """One directive, ready for the stream."""

    id: int
    wire: dict[str, Any]


def register(
    session: Session, told: protocol.Registration, *, settings: Settings, beat_interval_s: float, now: datetime
) -> Arrived:
    """Lets an agent in, and compares what runs on its node with what should.

    The boot token is good for one boot of the agent, which may repeat itself: the answer may have been lost. A restarted agent shows its
    node token, and keeps it; one whose host was started anew from an image has lost that, and the boot token is good again.

    Raises:
        Unauthenticated: unknown instance, wrong token, or a boot token that another boot has used up.
        NodeGone: the node has been released.
    """
    node = _lock(session, Node.instance_id == told.instance_id)
    node_token = _node_token(node, told, settings.master_key)
    is_new_boot = node.boot != told.boot
    started = node.boot_start
    arrival = node_changes.Arrival(
        boot=told.boot,
        address=told.address,
        rendezvous_port=told.rendezvous_port,
        facts={"agent_version": told.version, "vcpus": told.vcpus, "memory_mib": told.memory_mib, "health_port": told.health_port},
        start=told.start,
    )
    node_changes.report_registered(session, node, arrival, node_token=node_token, now=now)
    if node.boot_start > started:
        checkpoint_changes.settle_lost_copies(session, node.id, now=now)
    _take_inventory(session, node, told.processes, is_new_boot=is_new_boot, now=now)
    welcome = protocol.Welcome(
        node_token,
        beat_interval_s,
        lifecycle_tries=settings.lifecycle_tries,
        lifecycle_pause_s=settings.lifecycle_pause_s,
        lifecycle_limit_s=settings.lifecycle_limit_s,
        **_lifecycle(session, node),
    )
    return Arrived(node.id, welcome)


def identify(session: Session, token: str, *, lock: bool = False) -> Node:
    """The node whose agent holds this token.

    Raises:
        Unauthenticated: nobody's token, or one that has been replaced.
        NodeGone: the node has been released.
    """
    return _lock(session, Node.node_token_digest == digest(token), lock=lock)


def open_stream(session: Session, token: str, *, now: datetime) -> tuple[NodeId, str]:
    """A directive stream begins. Returns its node, and the name under which it is to be closed."""
    node = identify(session, token, lock=True)
    name = new_token()
    node.facts = {**node.facts, _STREAM: name}
    node_changes.report_stream(session, node, is_open=True, now=now)
    _wake_jobs(session, node, now)
    return node.id, name


def close_stream(session: Session, node_id: NodeId, name: str, *, now: datetime) -> None:
    """A directive stream has ended. Nothing happens if the node has a newer one: then it has only been replaced."""
    node = node_queries.get(session, node_id, lock=True)
    if node.facts.get(_STREAM) != name or node.state is NodeState.GONE:
        return
    node_changes.report_stream(session, node, is_open=False, now=now)
    _wake_jobs(session, node, now)


def assignments(session: Session, node_id: NodeId, commons: tiers.Commons, *, now: datetime) -> list[Line]:
    """The plan of its memory tier, all that the node should run, oldest first, the faults that it is to know of, and by when it is to be left.

    Last comes what it holds itself ready for. A fault's line has another number with each of its states, and none that a directive could have. The plan comes before what needs it: a process
    is told the token of its namespace when it starts.
    """
    plan = tiers.line(session, node_id, commons, now=now)
    told = [] if plan is None else [Line(_PLANS - plan[0], {"memory_tier": plan[1]})]
    told += directives(session, node_id)
    told += [Line(_number(fault), {"fault": _fault(fault).to_wire()}) for fault in fault_queries.of_node(session, node_id)]
    told += [Line(_CHECKS - check.sequence, {"check": check.order}) for check in health_queries.asked_of_node(session, node_id)]
    node = node_queries.get(session, node_id)
    return told + _evacuation(node) + _standby(session, node)


def directives(session: Session, node_id: NodeId) -> list[Line]:
    """All that the node should run, oldest first, and nothing else: one query, for what waits for nothing else."""
    return [Line(row.id, {"id": row.id, "assignment": row.assignment}) for row in directive_queries.current(session, node_id)]


def deliver(session: Session, ids: Sequence[int], *, now: datetime) -> None:
    """These lines have been written to their stream. Of faults the agent itself tells."""
    directive_changes.report_delivered(session, [number for number in ids if number > 0], now=now)


def undelivered(session: Session, node_ids: Sequence[NodeId]) -> list[NodeId]:
    """Which of these nodes have a directive that no stream has carried yet, or a fault of which the agent has not told, or were ever to be left.

    That one may stay after all is news as well; a stream sends what it has not sent yet.
    """
    wanted = select(Directive.node_id).where(Directive.state == DirectiveState.ISSUED, Directive.node_id.in_(node_ids))
    untold = select(Fault.node_id).where(Fault.state.in_((FaultState.WANTED, FaultState.ENDING)), Fault.node_id.in_(node_ids))
    unexamined = select(NodeCheck.node_id).where(NodeCheck.state == CheckState.ASKED, NodeCheck.node_id.in_(node_ids))
    leaving = select(Node.id).where(Node.facts.has_key(node_changes.EVACUATIONS), Node.id.in_(node_ids))
    return list(session.scalars(union(wanted, untold, unexamined, leaving)))


def report_beats(session: Session, beats: Sequence[node_beats.Heartbeat]) -> None:
    node_beats.report_beats(session, beats)


def _evacuation(node: Node) -> list[Line]:
    """By when what runs there must have left, or that it may stay after all; nothing as long as nobody was ever told to leave."""
    number = int(node.facts.get(node_changes.EVACUATIONS, 0))
    if not number:
        return []
    deadline = None if node.leave_by is None else node.leave_by.timestamp()
    why = node.leave_why or "nothing has to leave the node any more"
    told = Evacuation(number, why, deadline, is_over=node.leave_why is None)
    return [Line(_EVACUATIONS - number, {"evacuate": told.to_wire()})]


def _standby(session: Session, node: Node) -> list[Line]:
    """Its number says what is in it: another one is news."""
    found = standby.standby(session, node)
    if found is None:
        return []
    wire = found.to_wire()
    return [Line(_STANDBY - zlib.crc32(json.dumps(wire, sort_keys=True).encode()), {"standby": wire})]


def _number(fault: Fault) -> int:
    return -(fault.sequence * len(FaultState) + list(FaultState).index(fault.state))


def _fault(fault: Fault) -> protocol.Fault:
    return protocol.Fault(
        id=fault.id,
        kind=fault.kind.value,
        process=fault.process_id,
        seconds=fault.seconds,
        is_over=fault.state is FaultState.ENDING,
        namespace=fault.namespace,
        step=fault.step,
        index=fault.shard,
        code=fault.code,
        device=fault.device,
    )


def _lock(session: Session, which: Any, *, lock: bool = True) -> Node:
    wanted = select(Node).where(which)
    node = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if node is None:
        raise Unauthenticated
    if node.state is NodeState.GONE:
        raise NodeGone
    return node


def _node_token(node: Node, told: protocol.Registration, master_key: bytes) -> str:
    """The token that the agent is to use from now on: the one it has shown, or a new one for the boot token."""
    if node.node_token_digest is not None and hmac.compare_digest(node.node_token_digest, digest(told.token)):
        return told.token
    is_boot_token = hmac.compare_digest(boot_token(master_key, node.id).encode(), told.token.encode())
    is_unused = node.boot in (None, told.boot) or node.boot_start < told.start <= node.starts
    if not is_boot_token or not is_unused:
        raise Unauthenticated
    return new_token()


def _take_inventory(
    session: Session, node: Node, told: Sequence[protocol.ProcessReport], *, is_new_boot: bool, now: datetime
) -> None:
    """Facts from the inventory. What should be alive and is not listed has exited while nobody watched.

    That conclusion is drawn for a fresh boot alone: an agent that registers again has the exit in its queue, with its code.
    What is listed and not wanted ends with the next assignments.
    """
    wanted = {process.id: process for process in job_queries.on_node(session, node.id)}
    _lock_jobs(session, {process.job_id for process in wanted.values()})
    for report in told:
        if report.process in wanted:
            report_process(session, report, now=now)
    if not is_new_boot:
        return
    missing = set(wanted) - {report.process for report in told}
    for process_id in sorted(missing):
        if wanted[process_id].state is not ProcessState.WANTED:
            job_reports.report_process(session, ProcessId(process_id), ProcessState.EXITED, now=now)


def report_process(session: Session, report: protocol.ProcessReport, *, now: datetime) -> None:
    facts = {"pid": report.pid, "exit_code": report.exit_code, "signal": report.signal, "tail": report.tail}
    known = {name: value for name, value in facts.items() if value is not None}
    job_reports.report_process(session, ProcessId(report.process), ProcessState(report.status.value), now=now, **known)


def _lifecycle(session: Session, node: Node) -> dict[str, str | None]:
    """What is still to be run on the node, as members of its welcome."""
    if node.lifecycle_done:
        return {}
    spec = session.scalars(select(InstanceGroup.spec).where(InstanceGroup.id == node.group_id)).one()
    config = spec.get("LifeCycleConfig") or {}
    return {
        "lifecycle_uri": config.get("SourceS3Uri"),
        "lifecycle_script": config.get("OnCreate"),
        "lifecycle_after": config.get("OnInitComplete"),
    }


def _wake_jobs(session: Session, node: Node, now: datetime) -> None:
    """The node's jobs take its stream for a witness of life: their plans want to know at once."""
    for job in _lock_jobs(session, {process.job_id for process in job_queries.on_node(session, node.id)}):
        wake(session, job, now=now)


def _lock_jobs(session: Session, job_ids: set[JobId]) -> Sequence[Job]:
    """Locks jobs in one order, so that two nodes which share two jobs cannot wait for each other."""
    if not job_ids:
        return ()
    return session.scalars(locked(select(Job).where(Job.id.in_(job_ids)).order_by(Job.id))).all()
