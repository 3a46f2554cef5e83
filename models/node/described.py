"""A cluster with all that its description shows, in one statement: what is asked most often costs one round trip."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, bindparam, func, or_, select
from sqlalchemy.orm import Session

from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import NotFound
from models.node.states import COUNTED
from models.node.table import Node


@dataclass(frozen=True)
class Described:
    """``groups`` are in the caller's order, without those that are gone, each with the number of its nodes that serve."""

    cluster: Cluster
    groups: tuple[tuple[InstanceGroup, int], ...]


# The table, not the class: how many nodes serve is told to every team, whoever's work they do.
_node = Node.__table__.c
_serving = select(func.count()).where(_node.group_id == InstanceGroup.id, _node.state.in_(COUNTED)).scalar_subquery()
_NAME = bindparam("name_or_arn")
_DESCRIBED = (
    select(Cluster, InstanceGroup, _serving)
    .outerjoin(InstanceGroup, and_(InstanceGroup.cluster_id == Cluster.id, InstanceGroup.state != GroupState.GONE))
    .where(or_(Cluster.name == _NAME, Cluster.arn == _NAME), Cluster.state != ClusterState.DELETED)
    .order_by(InstanceGroup.position)
)
"""Made once: putting a statement together costs as much as carrying it out."""


def described(session: Session, name_or_arn: str) -> Described:
    """Raises NotFound."""
    rows = session.execute(_DESCRIBED, {"name_or_arn": name_or_arn}).all()
    if not rows:
        raise NotFound(kind="Cluster", name=name_or_arn)
    return Described(rows[0][0], tuple((group, serving) for _, group, serving in rows if group is not None))
