"""Writes of nodes: what agents and providers report, what reconcilers conclude. What is asked of single nodes is in ``wishes``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import events
from models.cluster.table import Cluster, InstanceGroup
from models.events import About, Level
from models.ids import ClusterId, InstanceId, LogicalId, OperationId, digest, new_logical_id, new_node_id
from models.job import queries as jobs
from models.move import move, wake
from models.node.labels import DECLARED, TAINT, Worn
from models.node.states import NODE, ON_SUSPICION, RESTARTING, CapacityType, HostWord, NodeState, Schedulability
from models.node.table import Host, Node
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify, notify_all, nudge
from models.operation import queries as operations
from models.operation.changes import settle_done
from models.operation.states import OF_NODES, OperationState


@dataclass(frozen=True)
class Arrival:
    """What an agent tells of itself and its host when it registers."""

    boot: str
    address: str
    rendezvous_port: int
    facts: dict[str, Any]
    start: int = 0
    """Which start of its host it came up with."""


_TOLD_TRIES = 8
EVACUATIONS = "evacuations"
"""The fact that counts what was said of the node's leaving: 0, and absent, as long as nobody has ever been told to leave."""
_LAUNCH_FACTS = frozenset({"obstacle", "launch_tries", "launch_tried_at", "launch_after"})
_HOST_WORK = (NodeState.BOOTING, NodeState.SUSPECT, *RESTARTING, NodeState.RELEASING)
"""The states that something is to be done for, or asked, at the provider."""
_THROUGH = (NodeState.READY, NodeState.GONE)
"""The states that end a node's part in whatever was asked for."""


def settle_wanted_node(
    session: Session,
    group: InstanceGroup,
    *,
    logical_id: LogicalId | None = None,
    failures: int = 0,
    image: str | None = None,
    instance_type: str | None = None,
    types: Sequence[str] = (),
    not_before: datetime | None = None,
    message: str | None = None,
    now: datetime,
) -> Node:
    """Writes the wish for one more host of a group.

    ``logical_id`` names the place that it takes over; ``failures`` counts the hosts which came to nothing there in a row; ``image`` is the
    release that the host is to run, ``instance_type`` its type; None: what the group wants. ``types`` are those that it may be of, if not any
    of its group's. It is not launched before ``not_before``; ``message``, what became of the host before it, is told until there is news.
    """
    wish = {"failures": failures, "is_replacement": logical_id is not None, "types": list(types), "launch_after": _iso(not_before)}
    node = Node(
        id=new_node_id(),
        cluster_id=group.cluster_id,
        group_id=group.id,
        group_name=group.name,
        logical_id=logical_id or new_logical_id(),
        state=NODE.initial,
        state_since=now,
        instance_type=instance_type or group.instance_type,
        image=image or group.image_wanted,
        capacity_type=CapacityType.SPOT if group.is_spot else CapacityType.ON_DEMAND,
        facts={name: fact for name, fact in wish.items() if fact},
        message=message,
        operation_id=operations.current(session, group.cluster_id) or _operation_of_place(session, logical_id),
        created_at=now,
    )
    session.add(node)
    wake(session, node, now=now)
    wake_host(session, node, now=now)
    return node


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _operation_of_place(session: Session, logical_id: LogicalId | None) -> OperationId | None:
    """What the newest node of the place was in the middle of: a replacement goes on with the node that takes the place over."""
    if logical_id is None:
        return None
    newest = select(Node.operation_id).where(Node.logical_id == logical_id).order_by(Node.created_at.desc(), Node.id).limit(1)
    return session.scalars(newest).first()


def wake_host(session: Session, node: Node, *, now: datetime) -> None:
    """Asks the slow lane to look: there is something to do, or to ask, at the provider."""
    node.host_reconcile_at = now
    session.flush()
    nudge(session, Host.KIND, node.id)


def settle_unwanted(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """The node is to go. Its own reconciler drains and releases it."""
    if node.is_wanted:
        node.is_wanted = False
        node.operation_id = operations.current(session, node.cluster_id) or node.operation_id
        record(session, node, "release requested", why, now)
    wake(session, node, now=now)


def settle_launched(session: Session, node: Node, *, instance_id: InstanceId, address: str | None, now: datetime) -> None:
    """The provider has confirmed the launch of this claim. If the node is being released meanwhile, that goes on, with what it now knows."""
    node.instance_id = instance_id
    node.address = address
    node.launched_at = now
    node.facts = {name: fact for name, fact in node.facts.items() if name not in _LAUNCH_FACTS}
    if node.state is not NodeState.REQUESTED:
        return
    settle_node(session, node, NodeState.BOOTING, why=f"Instance {instance_id} was launched.", now=now)


def settle_node(session: Session, node: Node, new: NodeState, *, why: str, now: datetime, level: Level = Level.INFO) -> None:
    """Concludes a node's state. The caller has checked its lease in this transaction.

    The cluster is nudged, not woken: its row comes before a node's in the order of locks.
    """
    move(session, NODE, node, new, now=now)
    if new is NodeState.READY:
        node.facts = {**node.facts, "failures": 0}
    if new in _HOST_WORK:
        wake_host(session, node, now=now)
    nudge(session, Cluster.KIND, node.cluster_id)
    if level is not Level.INFO:
        node.message = why
    record(session, node, f"node {new}", why, now, level=level)
    if new in _THROUGH:
        _settle_through(session, node, now)


def _settle_through(session: Session, node: Node, now: datetime) -> None:
    """The node is through with the operation that it was part of, as is that operation if it is about nodes and this was the last one.

    The operation is locked before its nodes are counted, so of two that are through at once the later one sees the earlier.
    """
    operation_id = node.operation_id
    if operation_id is None:
        return
    if node.state is NodeState.READY:
        node.operation_id = None
        session.flush()
    operation = operations.get(session, operation_id)
    if operation is None or operation.type not in OF_NODES or operation.state is not OperationState.IN_PROGRESS:
        return  # one that is about groups is not even locked: whoever supersedes it may hold it, and wait for this node
    operations.get(session, operation_id, lock=True)
    still = select(func.count()).select_from(Node).where(Node.operation_id == operation_id, Node.state != NodeState.GONE)
    if not session.scalar(still):
        settle_done(session, operation_id, now=now)


def settle_held(session: Session, node: Node, holder: str | None, *, now: datetime) -> None:
    """Keeps new work from the node, for this holder's sake, or gives it back. What runs on it goes on."""
    if node.held_for == holder:
        return
    node.held_for = holder
    text_ = "The node takes no new work." if holder else "The node takes work again."
    record(session, node, "node held" if holder else "node given back", text_, now)
    wake(session, node, now=now)


def settle_schedulability(session: Session, node: Node, new: Schedulability, *, why: str, now: datetime) -> None:
    """What the conditions of the locked node come to. Its words are put on it by ``settle_dressed``."""
    is_well = new is Schedulability.SCHEDULABLE
    node.schedulability = new
    node.message = None if is_well else f"{new}: {why}"
    record(session, node, "node schedulable" if is_well else "node unschedulable", f"{new}: {why}", now, level=_level(is_well))
    wake(session, node, now=now)


def settle_dressed(session: Session, node: Node, worn: Worn, *, declared: Worn) -> None:
    """What the locked node carries from now on, and what of it is its group's."""
    node.labels, node.taints = dict(worn.labels), [dict(taint) for taint in worn.taints]
    wish = {"labels": dict(declared.labels), "taints": [dict(taint) for taint in declared.taints]}
    node.facts = {**node.facts, DECLARED: wish} if any(wish.values()) else {k: v for k, v in node.facts.items() if k != DECLARED}
    session.flush()


def _level(is_well: bool) -> Level:
    return Level.INFO if is_well else Level.WARN


def settle_leaving(session: Session, node: Node, *, by: datetime | None, why: str, now: datetime) -> None:
    """Whatever runs on the locked node must have left ``by`` then (None: no certain time): it is told, and no new work comes.

    Said again with another time or reason, the newest counts; the same again changes nothing. Locks the jobs on the node, by their ids.
    """
    if (node.leave_by, node.leave_why) == (by, why):
        return
    node.leave_by, node.leave_why = by, why
    _number_evacuation(node)
    if TAINT not in node.taints:
        node.taints = [*node.taints, dict(TAINT)]
    until = f" by {by.isoformat(timespec='seconds')}" if by else ""
    record(session, node, "node leaving", f"What runs on the node is told to leave{until}: {why}", now, level=Level.WARN)
    _tell_evacuation(session, node, now)


def settle_staying(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """Nothing has to leave the locked node any more. It wears the taint until its own reconciler has looked."""
    if node.leave_why is None:
        return
    node.leave_by = node.leave_why = None
    _number_evacuation(node)
    record(session, node, "node staying", why, now)
    _tell_evacuation(session, node, now)


def settle_standby(session: Session, cluster_id: str) -> None:
    """What nodes of the cluster's spare pools are to hold themselves ready for has changed: their agents are told."""
    pooled = select(Node.id).join(InstanceGroup, InstanceGroup.id == Node.group_id).where(InstanceGroup.spare_nodes.is_not(None))
    found = session.scalars(
        pooled.where(Node.cluster_id == cluster_id, Node.state.not_in((NodeState.REQUESTED, NodeState.GONE)))
    ).all()
    if found:
        notify_all(session, CHANNEL, found)


def _number_evacuation(node: Node) -> None:
    """Each change of it has a number of its own, under which the agent is told, the end of it included."""
    node.facts = {**node.facts, EVACUATIONS: int(node.facts.get(EVACUATIONS, 0)) + 1}


def _tell_evacuation(session: Session, node: Node, now: datetime) -> None:
    """Its agent, through the stream that it holds, and the jobs on it."""
    notify(session, CHANNEL, node.id)
    wake(session, node, now=now)
    for job_id in sorted({process.job_id for process in jobs.on_node(session, node.id)}):
        wake(session, jobs.get(session, job_id, lock=True), now=now)


def settle_lost(session: Session, node: Node, *, witnesses: str, is_certain: bool = True, now: datetime) -> None:
    """The loss of the node is confirmed; ``witnesses`` says by whom, in words. ``is_certain``: its provider is one of them."""
    node.lost_because = witnesses
    if not is_certain:
        node.facts = {**node.facts, ON_SUSPICION: True}
    node.is_wanted = False
    settle_node(session, node, NodeState.RELEASING, why=f"The node is lost: {witnesses}.", now=now, level=Level.WARN)


def settle_failed(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """The host never came to serve. Its place is filled by another one, which remembers how many failed before it."""
    node.lost_because = why
    node.is_wanted = False
    node.facts = {**node.facts, "failures": int(node.facts.get("failures", 0)) + 1}
    settle_node(session, node, NodeState.RELEASING, why=why, now=now, level=Level.ERROR)


def settle_obstacle(session: Session, node: Node, *, why: str, is_for_good: bool, now: datetime) -> None:
    """The provider cannot launch the host now, or not start it anew.

    A classic cluster gives up on a launch, a continuous one keeps asking; a restart is asked for until the node's patience runs out.
    """
    told = node.facts.get("obstacle")
    tries = int(node.facts.get("launch_tries", 0)) + 1
    node.facts = {**node.facts, "obstacle": why, "launch_tries": tries, "launch_tried_at": now.isoformat()}
    node.message = why
    if told != why or _is_told(tries):
        name = "launch impossible" if node.state is NodeState.REQUESTED else "restart impossible"
        text_ = why if tries == 1 else f"{why} (attempt {tries})"
        record(session, node, name, text_, now, level=Level.ERROR if is_for_good else Level.WARN)
    if told != why:
        nudge(session, Cluster.KIND, node.cluster_id)
    session.flush()


def _is_told(tries: int) -> bool:
    """Each of the first attempts is told, and ever fewer of those that follow: a want of capacity can last for days."""
    return tries <= _TOLD_TRIES or tries & (tries - 1) == 0


def report_host(session: Session, node: Node, word: HostWord, *, now: datetime) -> None:
    """What the provider says of the host. One witness among others; the node's plan concludes."""
    node.host_word = word
    node.host_word_at = now
    session.flush()
    if word is not HostWord.ALIVE:
        wake(session, node, now=now)


def report_registered(session: Session, node: Node, arrival: Arrival, *, node_token: str, now: datetime) -> None:
    """An agent has come up, for the first time or again. The token replaces the one before.

    While a restart is awaited, only an agent of the new start ends the waiting: the old one may have crashed before its host was restarted.
    """
    start = min(arrival.start, node.starts)  # no start that nobody asked for
    if node.boot != arrival.boot:
        node.boot = arrival.boot
        node.boot_start = start
        node.host_start = max(node.host_start, start)  # the note of the provider's call may have been lost
        node.report_sequence = -1
        node.beat_sequence = -1
    node.node_token_digest = digest(node_token)
    node.address = arrival.address
    node.rendezvous_port = arrival.rendezvous_port
    node.facts = {**node.facts, **arrival.facts}
    node.last_seen = now
    has_started_anew = node.state in RESTARTING and start == node.starts
    if node.state is NodeState.BOOTING or has_started_anew:
        move(session, NODE, node, NodeState.CHECKING, now=now)
        record(session, node, "agent registered", f"The agent of {node.instance_id} registered from {arrival.address}.", now)
    else:
        wake(session, node, now=now)


def report_lifecycle_started(session: Session, node: Node, *, script: str, attempt: int, now: datetime) -> None:
    """The agent begins a try of a lifecycle script; nothing of the node changes."""
    if node.lifecycle_done or node.state in RESTARTING:
        return
    tries = f" (try {attempt})" if attempt > 1 else ""
    record(session, node, "lifecycle started", f"Lifecycle script {script} started{tries}.", now)


def report_lifecycle(
    session: Session,
    node: Node,
    *,
    exit_code: int,
    tail: str,
    script: str | None = None,
    attempt: int = 1,
    is_final: bool = True,
    now: datetime,
) -> None:
    """A try of a lifecycle script has ended or, ``is_final``, all of them have; exit code and the end of its log are kept for people.

    Once they have succeeded, that is final. Without a script there was nothing to run, and nothing is told of it.
    """
    if node.lifecycle_done or node.state in RESTARTING:
        return  # an agent of the start before it knows nothing of the scripts that are to run again
    has_failed = exit_code != 0
    if has_failed:
        which = f"Lifecycle script {script}" if script else "Lifecycle script"
        tries = f" (try {attempt})" if attempt > 1 or not is_final else ""
        node.message = f"{which} failed with exit code {exit_code}{tries}: {tail[-500:].strip()}"
    text_ = str(node.message) if has_failed else "Lifecycle script execution succeeded."
    name = "lifecycle failed" if has_failed else "lifecycle succeeded"
    if has_failed or script is not None:
        record(session, node, name, text_, now, level=Level.ERROR if has_failed else Level.INFO)
    if is_final:
        node.lifecycle_done = not has_failed
        node.facts = {**node.facts, "lifecycle_exit_code": exit_code}
        wake(session, node, now=now)


def report_stream(session: Session, node: Node, *, is_open: bool, now: datetime) -> None:
    """The directive stream was opened or has closed: a fact, from which nobody concludes alone that the node is dead."""
    node.stream_lost_at = None if is_open else now
    if is_open:
        node.last_seen = now
    wake(session, node, now=now)


def record(session: Session, node: Node, name: str, description: str, now: datetime, *, level: Level = Level.INFO) -> None:
    """An event about this node."""
    events.record(
        session,
        name,
        description,
        about=About.INSTANCE,
        level=level,
        cluster_id=ClusterId(node.cluster_id),
        group_name=node.group_name,
        instance_id=node.instance_id,
        node_id=node.id,
        operation_id=node.operation_id,
        details={"logical_id": node.logical_id} | ({"failure": description} if level is not Level.INFO else {}),
        now=now,
    )
