"""Reads of nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, collate, exists, func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from models.cluster.table import InstanceGroup
from models.errors import NotFound, Unauthenticated
from models.ids import InstanceId, NodeId, OperationId, digest
from models.node.states import COUNTED, GAVE_WAY, SERVING, NodeState
from models.node.table import Node
from models.operation.states import OF_NODES, OperationState
from models.operation.table import Operation
from models.paging import Cut, Page, page
from models.session import ACROSS_TEAMS, locked

_GAVE_WAY = func.coalesce(func.jsonb_extract_path_text(Node.facts, GAVE_WAY), "")
"""In an order, those that gave way come last."""


def get(session: Session, node_id: str, *, lock: bool = False) -> Node:
    """Raises NotFound."""
    wanted = select(Node).where(Node.id == node_id)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Node", name=node_id)
    return row


def of_cluster(session: Session, cluster_id: str, *, with_incoming: Sequence[str] = ()) -> list[Node]:
    """A cluster's nodes, oldest first, without those that are gone.

    ``with_incoming`` are groups whose nodes to come, from other groups, are among them: in one statement, so that none is seen twice or not at all.
    """
    is_here = Node.cluster_id == cluster_id
    is_near = or_(is_here, Node.move_to.in_(with_incoming)) if with_incoming else is_here
    wanted = select(Node).where(is_near, Node.state != NodeState.GONE)
    return list(session.scalars(wanted.order_by(Node.created_at, Node.id)))


def of_places(session: Session, cluster_id: str) -> list[Node]:
    """The newest node of every place that a cluster ever had, gone or not: it tells which places are vacant, and why.

    One that gave way to another of its place is passed over.
    """
    wanted = select(Node).where(Node.cluster_id == cluster_id).ext(distinct_on(Node.group_id, Node.logical_id))
    return list(session.scalars(wanted.order_by(Node.group_id, Node.logical_id, _GAVE_WAY, Node.created_at.desc(), Node.id)))


def newest_of(session: Session, group_id: str, places: Sequence[str]) -> list[Node]:
    """The newest node of each of these places of a group; locked, in the order of their ids."""
    newest = select(Node.id).where(Node.group_id == group_id, Node.logical_id.in_(places)).ext(distinct_on(Node.logical_id))
    ids = session.scalars(newest.order_by(Node.logical_id, _GAVE_WAY, Node.created_at.desc())).all()
    return list(session.scalars(locked(select(Node).where(Node.id.in_(ids)).order_by(Node.id))))


def idle_operations(session: Session, cluster_id: str) -> list[OperationId]:
    """The open operations about single nodes that no node is in the middle of any more: the last one was let go, or is part of a newer one."""
    has_nodes = exists().where(Node.operation_id == Operation.id, Node.state != NodeState.GONE)
    wanted = select(Operation.id).where(
        Operation.cluster_id == cluster_id,
        Operation.state == OperationState.IN_PROGRESS,
        Operation.type.in_(OF_NODES),
        ~has_nodes,
    )
    return list(session.scalars(wanted.order_by(Operation.id)))


def lock(session: Session, ids: Collection[str], *, groups: Collection[str], holder: str, places: Collection[str]) -> None:
    """Locks these nodes, and those of the groups that are at one of the places or are held for the holder's sake: all in the order of their ids."""
    of_groups = and_(Node.group_id.in_(groups), or_(Node.held_for == holder, Node.logical_id.in_(places)))
    session.execute(locked(select(Node.id).where(or_(Node.id.in_(ids), of_groups)).order_by(Node.id)))


def held_for(session: Session, group_id: str, holder: str) -> list[Node]:
    """The nodes of a group that take no new work for this holder's sake; locked, in the order of their ids."""
    wanted = select(Node).where(Node.group_id == group_id, Node.held_for == holder, Node.state != NodeState.GONE)
    return list(session.scalars(locked(wanted.order_by(Node.id))))


def silent(session: Session, *, before: datetime, limit: int) -> list[str]:
    """Nodes that serve, as far as we know, and were last heard before that time; those which wait for a look already are left out."""
    wanted = select(Node.id).where(Node.state == NodeState.READY, Node.last_seen < before, Node.reconcile_at.is_(None))
    return list(session.scalars(wanted.order_by(Node.id).limit(limit)))


def population(session: Session) -> int:
    """How many nodes are not gone, in all clusters."""
    return session.scalar(select(func.count()).select_from(Node).where(Node.state != NodeState.GONE)) or 0


def noted_hosts(session: Session, ids: Sequence[str]) -> dict[NodeId, InstanceId | None]:
    """The instances of those of these nodes that exist and are not gone; None for one whose launch has not been noted."""
    rows = session.execute(select(Node.id, Node.instance_id).where(Node.id.in_(ids), Node.state != NodeState.GONE))
    return {row.id: row.instance_id for row in rows}


def by_instance(session: Session, instance_id: str, *, lock: bool = False) -> Node:
    """The node that is not gone and runs on this instance. Raises NotFound."""
    wanted = select(Node).where(Node.instance_id == instance_id, Node.state != NodeState.GONE)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Node", name=instance_id)
    return row


def by_token(session: Session, token: str) -> Node:
    """The node whose agent holds this node token.

    Raises:
        Unauthenticated: no live node's token, which also ends the agent of a node that is gone.
    """
    row = session.scalars(select(Node).where(Node.node_token_digest == digest(token), Node.state != NodeState.GONE)).one_or_none()
    if row is None:
        raise Unauthenticated
    return row


@dataclass(frozen=True)
class NodeFilter:
    """Which nodes a listing shows. A bound in time is exclusive on both sides; None does not bound."""

    created_after: datetime | None = None
    created_before: datetime | None = None
    group_contains: str | None = None
    has_instance: bool = False


def listed(session: Session, cluster_id: str, wanted: NodeFilter, cut: Cut, *, by_name: bool = False) -> Page[Node]:
    """The nodes of a cluster that are not gone, by creation or by the name of their group."""
    statement = select(Node).where(Node.cluster_id == cluster_id, Node.state != NodeState.GONE)
    if wanted.created_after is not None:
        statement = statement.where(Node.created_at > wanted.created_after)
    if wanted.created_before is not None:
        statement = statement.where(Node.created_at < wanted.created_before)
    if wanted.group_contains:
        statement = statement.where(Node.group_name.contains(wanted.group_contains, autoescape=True))
    if wanted.has_instance:
        statement = statement.where(Node.instance_id.is_not(None))
    if by_name:
        return page(session, statement, (collate(Node.group_name, "C"), Node.id), lambda row: (row.group_name, row.id), cut)
    return page(session, statement, (Node.created_at, Node.id), lambda row: (row.created_at, row.id), cut)


def of_place(session: Session, cluster_id: str, *, instance_id: str | None = None, logical_id: str | None = None) -> Node:
    """The node of this cluster with this instance id, or the newest that fills this logical place. Raises NotFound."""
    wanted = select(Node).where(Node.cluster_id == cluster_id, Node.state != NodeState.GONE)
    if instance_id is not None:
        wanted = wanted.where(Node.instance_id == instance_id)
    if logical_id is not None:
        wanted = wanted.where(Node.logical_id == logical_id)
    row = session.scalars(wanted.order_by(Node.created_at.desc()).limit(1)).one_or_none()
    if row is None:
        raise NotFound(kind="Node", name=instance_id or logical_id)
    return row


def of_batch(session: Session, cluster_id: str, *, instance_ids: Sequence[str] = (), logical_ids: Sequence[str] = ()) -> list[Node]:
    """The nodes of this cluster with these instance ids, and the newest at each of these places, as far as there are any.

    Locked, in the order of their ids; one may be gone by the time that it is locked.
    """
    known = select(Node.id).where(Node.cluster_id == cluster_id, Node.state != NodeState.GONE)
    ids = set(session.scalars(known.where(Node.instance_id.in_(instance_ids)))) if instance_ids else set()
    if logical_ids:
        newest = known.where(Node.logical_id.in_(logical_ids)).ext(distinct_on(Node.logical_id))
        ids |= set(session.scalars(newest.order_by(Node.logical_id, Node.created_at.desc(), Node.id)))
    return list(session.scalars(locked(select(Node).where(Node.id.in_(ids)).order_by(Node.id))))


def newest_at(session: Session, logical_ids: Sequence[str]) -> dict[str, Node]:
    """The newest node at each of these places, gone or not, by the place; whoever works on it, for the caller was told of them before."""
    wanted = select(Node).where(Node.logical_id.in_(logical_ids)).ext(distinct_on(Node.logical_id))
    ordered = wanted.order_by(Node.logical_id, Node.created_at.desc(), Node.id)
    newest = session.scalars(ordered.execution_options(**{ACROSS_TEAMS: True}))
    return {node.logical_id: node for node in newest}


def at_wanted_image(session: Session, cluster_id: str) -> dict[str, int]:
    """How many nodes of each group serve on the release that the group wants, by the group's id; groups without any are left out."""
    nodes = func.count().label("nodes")
    counted = select(Node.group_id, nodes).join(InstanceGroup, InstanceGroup.id == Node.group_id)
    counted = counted.where(
        Node.cluster_id == cluster_id, Node.state.in_(SERVING), Node.image.is_not_distinct_from(InstanceGroup.image_wanted)
    )
    return {row.group_id: row.nodes for row in session.execute(counted.group_by(Node.group_id))}


def _is_counted() -> ColumnElement[bool]:
    return or_(Node.state.in_(COUNTED), and_(Node.state == NodeState.CHECKING, Node.starts > 0))


def current_counts(session: Session, cluster_id: str) -> dict[str, int]:
    """How many nodes of each group serve, by the group's id; groups without any are left out."""
    nodes = func.count().label("nodes")
    counted = select(Node.group_id, nodes).where(Node.cluster_id == cluster_id, _is_counted()).group_by(Node.group_id)
    return {row.group_id: row.nodes for row in session.execute(counted.execution_options(**{ACROSS_TEAMS: True}))}


def current_types(session: Session, group_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """How many nodes of each instance type serve in these groups, by the group's id."""
    counted = (
        select(Node.group_id, Node.instance_type, func.count())
        .where(Node.group_id.in_(group_ids), _is_counted())
        .group_by(Node.group_id, Node.instance_type)
    )
    counts: dict[str, dict[str, int]] = {}
    for group_id, instance_type, nodes in session.execute(counted):
        counts.setdefault(group_id, {})[instance_type] = nodes
    return counts


def live_types(session: Session, group_id: str) -> set[str]:
    """The instance types of which a group has nodes that are not gone."""
    wanted = select(Node.instance_type).where(Node.group_id == group_id, Node.state != NodeState.GONE).distinct()
    return set(session.scalars(wanted))
