"""What may be asked of a single node, and how it is carried out: restarts, replacement, moves, removal. One at a time.

Each names the operation that it belongs to, so that the node's events carry it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.cluster.table import Cluster, InstanceGroup
from models.errors import InUse, in_transition
from models.events import Level
from models.ids import OperationId
from models.move import wake
from models.node.changes import record, settle_node, settle_unwanted
from models.node.states import GAVE_WAY, RESTARTING, SERVING, STARTED_ANEW, NodeState, Restart
from models.node.table import Node
from models.notify import NUDGE, notify_all, nudge
from models.session import locked

IS_REPAIR = "restart_is_repair"
"""The fact of a node whose restart was asked for by no person; as long as it has not begun."""


def request_reboot(
    session: Session,
    node: Node,
    *,
    why: str,
    drain: timedelta | None = None,
    is_forced: bool = True,
    is_repair: bool = False,
    operation_id: OperationId | None = None,
    now: datetime,
) -> None:
    """Asks for a new start of a locked node's host. Its jobs leave first, within ``drain`` (None: the node's usual patience).

    When they have not left in time they end with the reboot; unless ``is_forced``, the wish is dropped instead. ``is_repair``: nobody asked for it.

    Raises:
        InUse: a restart, a replacement or a move of the node is on its way.
        InTransition: the node does not serve.
    """
    _request_restart(session, node, Restart.REBOOT, drain=drain, is_forced=is_forced)
    node.facts = {**node.facts, IS_REPAIR: True} if is_repair else node.facts
    node.operation_id = operation_id or node.operation_id
    record(session, node, "reboot requested", f"Reboot of {node.instance_id} was requested: {why}", now)
    wake(session, node, now=now)


def request_reimage(
    session: Session,
    node: Node,
    *,
    image: str | None,
    why: str,
    drain: timedelta | None = None,
    is_forced: bool = True,
    operation_id: OperationId | None = None,
    now: datetime,
) -> None:
    """Asks that a locked node's host starts from this image release (None: the provider's own), and that lifecycle scripts run again.

    Otherwise as ``request_reboot``.
    """
    _request_restart(session, node, Restart.REIMAGE, drain=drain, is_forced=is_forced)
    node.restart_image = image
    node.operation_id = operation_id or node.operation_id
    record(session, node, "reimage requested", f"{node.instance_id} is to start from {image or 'the default image'}: {why}", now)
    wake(session, node, now=now)


def request_replacement(
    session: Session, node: Node, *, why: str, failures: int = 0, operation_id: OperationId | None = None, now: datetime
) -> None:
    """Asks for another host in a locked node's place: a new instance id, the same logical id, the group's target unchanged.

    ``failures``: how many hosts there have come to nothing before it; the more, the longer the place waits for the next.

    Raises:
        InUse: the node is on its way to another group.
        InTransition: the node is going anyway.
    """
    check_replaceable(node)
    node.is_wanted = False
    node.is_replaced_on_request = True
    node.lost_because = f"its replacement was requested: {why}"
    node.facts = {**node.facts, "failures": failures}
    node.operation_id = operation_id or node.operation_id
    record(session, node, "replacement requested", f"Replacement of {node.instance_id} was requested: {why}", now)
    wake(session, node, now=now)
    nudge(session, Cluster.KIND, node.cluster_id)


def request_move(
    session: Session, node: Node, target: InstanceGroup, *, operation_id: OperationId | None = None, now: datetime
) -> None:
    """Asks that a locked node goes over to another group. The caller has changed both groups' targets.

    Raises:
        InUse: a restart or another move of the node is on its way.
        InTransition: the node does not serve.
    """
    check_free(node, "a move")
    node.move_to = target.id
    node.operation_id = operation_id or node.operation_id
    record(session, node, "move requested", f"{node.instance_id} is to move to instance group {target.name}.", now)
    wake(session, node, now=now)


def request_removal(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """Asks that a locked node goes. The caller has lowered its group's target: nobody takes its place.

    Raises:
        InUse: a restart, a replacement or a move of the node is on its way.
        InTransition: the node is going anyway.
    """
    check_removable(node)
    settle_unwanted(session, node, why=why, now=now)
    nudge(session, Cluster.KIND, node.cluster_id)


def settle_gave_way(node: Node) -> None:
    """Another node has the place of the locked one, which is let go: what becomes of the place is the other's to say from now on."""
    node.facts = {**node.facts, GAVE_WAY: True}


def request_look(session: Session, cluster_id: str, *, now: datetime) -> None:
    """Asks that every node of a locked cluster is looked at: what its group declares, or who may repair it, may be new."""
    present = select(Node).where(Node.cluster_id == cluster_id, Node.state.not_in((NodeState.RELEASING, NodeState.GONE)))
    rows = list(session.scalars(locked(present.order_by(Node.id))))
    for node in rows:
        node.reconcile_at = now
    session.flush()
    notify_all(session, NUDGE, [f"{Node.KIND}:{node.id}" for node in rows])


def check_free(node: Node, verb: str) -> None:
    """That the node serves, and nothing is under way with it. Raises InUse, InTransition."""
    _check_unoccupied(node)
    if not node.is_wanted or node.state not in SERVING:
        raise in_transition(kind="Node", name=_name(node), state=_seen(node), verb=verb)


def check_removable(node: Node) -> None:
    """Raises InUse, InTransition."""
    _check_unoccupied(node)
    if not node.is_wanted or node.state in (NodeState.RELEASING, NodeState.GONE):
        raise in_transition(kind="Node", name=_name(node), state=_seen(node), verb="its removal")


def check_replaceable(node: Node) -> None:
    """A restart that does not come back is no hindrance. Raises InUse, InTransition."""
    if not node.is_wanted or node.state in (NodeState.RELEASING, NodeState.GONE):
        raise in_transition(kind="Node", name=_name(node), state=_seen(node), verb="a replacement")
    if node.move_to is not None:
        raise InUse(kind="Node", name=_name(node), by="a move to another group")


def settle_restart(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """The node is drained: from now on its provider is asked for one more start. An image clears what lifecycle scripts have done."""
    is_reimage = node.restart is Restart.REIMAGE
    if is_reimage:
        _expect_image(node, node.restart_image)
    _count_start(node, now)
    _drop_restart(node)
    settle_node(session, node, NodeState.UPDATING if is_reimage else NodeState.REBOOTING, why=why, now=now)


def settle_restart_dropped(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """The node's jobs did not leave in time, and were not to be disturbed: it serves on."""
    _drop_restart(node)
    settle_node(session, node, NodeState.READY, why=why, now=now, level=Level.WARN)


def settle_restart_called_off(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """Nobody wants the locked node's restart any more, and its provider has not been asked for it."""
    _drop_restart(node)
    if node.state is NodeState.DRAINING:
        settle_node(session, node, NodeState.READY, why=why, now=now)
    else:
        record(session, node, "reboot called off", why, now)
        wake(session, node, now=now)


def settle_restarted(session: Session, node: Node, *, start: int, now: datetime) -> None:
    """The provider has carried out this start of the host. Its agent is waited for."""
    if node.host_start >= start:
        return
    node.host_start = start
    record(session, node, "host restarted", f"The provider has started {node.instance_id} anew.", now)
    session.flush()


def settle_moved(session: Session, node: Node, target: InstanceGroup, *, image: str | None, why: str, now: datetime) -> None:
    """A drained node goes over to its new group, which may be another cluster's, and starts from that group's image."""
    record(session, node, "node detached", f"{node.instance_id} left instance group {node.group_name}.", now)
    nudge(session, Cluster.KIND, node.cluster_id)
    node.cluster_id, node.group_id, node.group_name = target.cluster_id, target.id, target.name
    node.move_to = None
    _count_start(node, now)
    _expect_image(node, image)
    settle_node(session, node, NodeState.ATTACHING, why=why, now=now)


def settle_move_withdrawn(session: Session, node: Node, *, why: str, now: datetime) -> None:
    """The group that the node was to go to is no more: the node stays, and its old group decides whether it still wants it."""
    node.move_to = None
    if node.state is NodeState.DETACHING:
        settle_node(session, node, NodeState.READY, why=why, now=now, level=Level.WARN)
    else:
        wake(session, node, now=now)


def _request_restart(session: Session, node: Node, kind: Restart, *, drain: timedelta | None, is_forced: bool) -> None:
    check_free(node, f"a {kind}")
    node.restart = kind
    node.restart_image = None
    node.restart_drain_s = None if drain is None else int(drain.total_seconds())
    node.restart_is_forced = is_forced
    session.flush()


def _check_unoccupied(node: Node) -> None:
    occupation = _occupation(node)
    if occupation is not None:
        raise InUse(kind="Node", name=_name(node), by=occupation)


def _seen(node: Node) -> str:
    """One that nobody wants any more is going, whatever it still does."""
    return node.state if node.is_wanted else NodeState.RELEASING


def _name(node: Node) -> str:
    return node.instance_id or node.logical_id


def _occupation(node: Node) -> str | None:
    """What is under way with the node."""
    if node.move_to is not None:
        return "a move to another group"
    if node.is_replaced_on_request:
        return "a replacement"
    return "a restart" if node.restart is not None or node.state in RESTARTING else None


def _expect_image(node: Node, image: str | None) -> None:
    node.image = image
    node.lifecycle_done = False
    node.facts = {name: fact for name, fact in node.facts.items() if not name.startswith("lifecycle_")}


def _count_start(node: Node, now: datetime) -> None:
    node.starts += 1
    node.facts = {**node.facts, STARTED_ANEW: now.isoformat()}


def _drop_restart(node: Node) -> None:
    node.restart = None
    node.restart_image = None
    node.restart_drain_s = None
    node.restart_is_forced = True
    node.facts = {name: fact for name, fact in node.facts.items() if name != IS_REPAIR}
