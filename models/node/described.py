"""A cluster with all that its description shows, in one statement: what is asked most often costs one round trip."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import JSON, BindParameter, bindparam, func, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from models.cluster.seen import SeenCluster, SeenGroup
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import NotFound
from models.image.aggregate import RELEASES, read_releases
from models.image.queries import Releases
from models.node.states import COUNTED
from models.node.table import Node

_SERVING: Final = "serving"
_OF_GROUP: Final = tuple(field.name for field in fields(SeenGroup) if field.name != _SERVING)
_OF_CLUSTER: Final = tuple(field.name for field in fields(SeenCluster))


@dataclass(frozen=True)
class Described:
    """``groups`` are in the caller's order, without those that are gone; ``releases`` are all that there are."""

    cluster: SeenCluster
    groups: tuple[SeenGroup, ...]
    releases: Releases


# The table, not the class: how many nodes serve is told to every team, whoever's work they do.
_node = Node.__table__.c
_serving = select(func.count()).where(_node.group_id == InstanceGroup.id, _node.state.in_(COUNTED)).scalar_subquery()
_group = func.json_build_array(*(getattr(InstanceGroup, name) for name in _OF_GROUP), _serving)
_groups = (
    select(func.json_agg(aggregate_order_by(_group, InstanceGroup.position), type_=JSON))
    .where(InstanceGroup.cluster_id == Cluster.id, InstanceGroup.state != GroupState.GONE)
    .scalar_subquery()
)
_name: BindParameter[str] = bindparam("name_or_arn")
_STATEMENT: Final = select(*(getattr(Cluster, name) for name in _OF_CLUSTER), _groups, RELEASES).where(
    or_(Cluster.name == _name, Cluster.arn == _name), Cluster.state != ClusterState.DELETED
)
"""Made once: putting a statement together costs as much as carrying it out."""


def described(session: Session, name_or_arn: str) -> Described:
    """Raises NotFound."""
    row = session.execute(_STATEMENT, {"name_or_arn": name_or_arn}).one_or_none()
    if row is None:
        raise NotFound(kind="Cluster", name=name_or_arn)
    *cluster, groups, releases = row
    return Described(SeenCluster(*cluster), tuple(map(_read_group, groups or ())), read_releases(releases))


def _read_group(values: list[Any]) -> SeenGroup:
    group = dict(zip((*_OF_GROUP, _SERVING), values, strict=True))
    return SeenGroup(**{**group, "state": GroupState(group["state"])})
