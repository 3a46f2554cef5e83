"""Reads of conditions, and of how much trouble a group has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from models.condition.states import OPEN, ConditionState, FaultClass, Repair, Source
from models.condition.table import Condition, RepairHold
from models.errors import NotFound
from models.ids import NodeId
from models.node.states import ON_SUSPICION, HostWord, NodeState
from models.node.table import Node
from models.paging import Cut, Page, page
from models.session import ACROSS_TEAMS, locked

_OUTSIDE = (NodeState.REQUESTED, NodeState.RELEASING, NodeState.GONE)


@dataclass(frozen=True)
class Trouble:
    """How many places of a group have trouble of which nobody but us is sure, and how many nodes of all groups are suspected.

    ``suspects``: silent, and not said to be dead by their provider. ``ill``: a reboot or a replacement is called for, by no operator.
    ``lost``: given up on suspicion, or let go to be replaced because of a fault, since a time. A place counts once, whatever it has. ``healing`` are
    nodes that are being repaired, and replacements that do not serve yet, but not one whose host cannot be had: for it nobody knows when.
    """

    target: int
    suspects: int = 0
    ill: int = 0
    lost: int = 0
    places: int = 0
    healing: int = 0
    all_suspects: int = 0
    all_serving: int = 0


def open_of(session: Session, node_id: str) -> list[Condition]:
    """What is the matter with a node, oldest first."""
    wanted = select(Condition).where(Condition.node_id == node_id, Condition.ended_at.is_(None))
    return list(session.scalars(wanted.order_by(Condition.sequence)))


def of_node(session: Session, node_id: str, *, limit: int = 100) -> list[Condition]:
    """All that has been the matter with a node, the newest first."""
    wanted = select(Condition).where(Condition.node_id == node_id)
    return list(session.scalars(wanted.order_by(Condition.sequence.desc()).limit(limit)))


def listed(
    session: Session, cluster_id: str, cut: Cut, *, place: str | None = None, node_id: str | None = None, open_only: bool = False
) -> Page[Condition]:
    """The conditions of a cluster's nodes, of one of them, or of all that had a place (a logical id), in the order in which they were heard of."""
    statement = select(Condition).where(Condition.cluster_id == cluster_id)
    if place is not None:
        statement = statement.where(Condition.logical_id == place)
    if node_id is not None:
        statement = statement.where(Condition.node_id == node_id)
    if open_only:
        statement = statement.where(Condition.ended_at.is_(None))
    return page(session, statement, (Condition.created_at, Condition.sequence), lambda row: (row.created_at, row.sequence), cut)


def occurrence(session: Session, node_id: str, name: str) -> Condition | None:
    wanted = select(Condition).where(Condition.node_id == node_id, Condition.occurrence == name)
    return session.scalars(wanted).one_or_none()


def reboots_before(session: Session, condition: Condition, *, since: datetime) -> int:
    """How often the same place has been rebooted for the same code, on the same device as far as both name one, since a time.

    What an operator asked for is no recurrence.
    """
    is_same = (
        or_(Condition.device.is_(None), Condition.device == condition.device) if condition.device else Condition.id.is_not(None)
    )
    counted = select(func.count()).where(
        Condition.logical_id == condition.logical_id,
        Condition.code == condition.code,
        Condition.sequence < condition.sequence,
        Condition.repair == Repair.REBOOT,
        Condition.state == ConditionState.RESOLVED,
        Condition.source != Source.OPERATOR,
        Condition.ended_at >= since,
        is_same,
    )
    return session.scalar(counted) or 0


def struck(session: Session, condition: Condition, *, since: datetime, limit: int = 100) -> tuple[datetime, ...]:
    """When the same device of a node had the same fault, from one time on until the condition, which is among them, at the same start of the host."""
    wanted = select(Condition.at).where(
        Condition.logical_id == condition.logical_id,
        Condition.code == condition.code,
        Condition.node_id == condition.node_id,
        Condition.device.is_not_distinct_from(condition.device),
        Condition.start == condition.start,
        Condition.sequence <= condition.sequence,
        Condition.created_at >= since,
    )
    return tuple(session.scalars(wanted.order_by(Condition.sequence.desc()).limit(limit)))


def trouble(session: Session, group_id: str, *, target: int, since: datetime) -> Trouble:
    """How much trouble a group has, in one statement; nodes that were given up count if that was after ``since``."""
    is_here = Node.group_id == group_id
    is_suspect = and_(Node.state == NodeState.SUSPECT, Node.host_word.is_distinct_from(HostWord.DEAD))
    is_ill = and_(Node.state.not_in(_OUTSIDE), Node.id.in_(select(Condition.node_id).where(_calls_for_repair())))
    is_lost = and_(
        Node.state.in_((NodeState.RELEASING, NodeState.GONE)),
        Node.state_since >= since,
        or_(func.coalesce(func.jsonb_extract_path_text(Node.facts, ON_SUSPICION), "") != "", Node.id.in_(_replaced(since))),
    )
    has_obstacle = func.coalesce(func.jsonb_extract_path_text(Node.facts, "obstacle"), "") != ""
    is_coming = and_(
        Node.is_wanted,
        Node.state.in_((NodeState.REQUESTED, NodeState.BOOTING, NodeState.CHECKING)),
        ~and_(Node.state == NodeState.REQUESTED, has_obstacle),
        func.coalesce(func.jsonb_extract_path_text(Node.facts, "is_replacement"), "") == "true",
    )
    under_repair = select(Condition.node_id).where(Condition.state == ConditionState.REPAIRING)
    is_repaired = and_(Node.state.not_in(_OUTSIDE), Node.id.in_(under_repair))
    is_healing = or_(is_coming, is_repaired, and_(is_lost, Node.state == NodeState.RELEASING))
    counted = select(
        func.count().filter(is_here, is_suspect),
        func.count().filter(is_here, is_ill),
        func.count().filter(is_here, is_lost),
        func.count(Node.logical_id.distinct()).filter(is_here, or_(is_suspect, is_ill, is_lost)),
        func.count().filter(is_here, is_healing),
        func.count().filter(is_suspect),
        func.count().filter(Node.state.in_((NodeState.READY, NodeState.SUSPECT))),
    ).where(or_(Node.state.in_((NodeState.READY, NodeState.SUSPECT)), is_here))
    return Trouble(target, *session.execute(counted.execution_options(**{ACROSS_TEAMS: True})).one())


def replaced_before(session: Session, node: Node, *, since: datetime) -> int:
    """How many other hosts at a node's place were let go since a time because of a fault that called for another one."""
    wanted = _replaced(since).where(Condition.logical_id == node.logical_id, Condition.node_id != node.id)
    return session.scalar(select(func.count()).select_from(wanted.distinct().subquery())) or 0


def _replaced(since: datetime) -> Select[NodeId]:
    """Nodes whose replacement a fault has called for, by no operator's word."""
    return select(Condition.node_id).where(
        Condition.repair == Repair.REPLACE, Condition.source != Source.OPERATOR, Condition.ended_at >= since
    )


def _calls_for_repair() -> ColumnElement[bool]:
    """Whatever was decided: as long as it was not, by its class."""
    by_class = and_(Condition.repair.is_(None), Condition.fault_class.in_((FaultClass.REBOOT, FaultClass.REPLACE)))
    is_real = Condition.state.in_([state for state in OPEN if state is not ConditionState.SUSPECTED])
    is_asked = Condition.source == Source.OPERATOR
    return and_(is_real, ~is_asked, or_(by_class, Condition.repair.in_((Repair.REBOOT, Repair.REPLACE))))


def hold_of(session: Session, group_id: str) -> RepairHold | None:
    """The newest hold of a group, over or not."""
    wanted = (
        select(RepairHold).where(RepairHold.group_id == group_id).order_by(RepairHold.created_at.desc(), RepairHold.id).limit(1)
    )
    return session.scalars(wanted).one_or_none()


def open_hold(session: Session, group_id: str, *, lock: bool = False) -> RepairHold:
    """Raises NotFound: nothing is held back in the group."""
    wanted = select(RepairHold).where(RepairHold.group_id == group_id, RepairHold.ended_at.is_(None))
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Hold of repairs of instance group", name=group_id)
    return row


def held_back(session: Session, group_id: str) -> list[str]:
    """The nodes of a group that wait for the end of a hold, or are suspected."""
    is_held = Node.id.in_(select(Condition.node_id).where(Condition.state == ConditionState.HELD))
    wanted = select(Node.id).where(
        Node.group_id == group_id, Node.state.not_in(_OUTSIDE), or_(Node.state == NodeState.SUSPECT, is_held)
    )
    return list(session.scalars(wanted.order_by(Node.id)))
