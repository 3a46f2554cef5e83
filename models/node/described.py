"""A cluster with all that its description shows, in one statement: what is asked most often costs one round trip."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import JSON, ColumnElement, Select, and_, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from models.cluster.seen import SeenCluster, SeenGroup
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import NotFound
from models.image.aggregate import RELEASES, read_releases
from models.image.queries import Releases
from models.node.states import COUNTED, NodeState
from models.node.table import Node
from models.prepared import Prepared

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
_COUNTED: Final[tuple[ColumnElement[str], ...]] = tuple(literal_column(f"'{state}'") for state in COUNTED)
_returns = and_(_node.state == literal_column(f"'{NodeState.CHECKING}'"), _node.starts > literal_column("0"))
_is_counted = or_(_node.state.in_(_COUNTED), _returns)
_serving = select(func.count()).where(_node.group_id == InstanceGroup.id, _is_counted).scalar_subquery()
_group = func.json_build_array(*(getattr(InstanceGroup, name) for name in _OF_GROUP), _serving)
_groups = (
    select(func.json_agg(aggregate_order_by(_group, InstanceGroup.position), type_=JSON))
    .where(InstanceGroup.cluster_id == Cluster.id, InstanceGroup.state != GroupState.GONE)
    .scalar_subquery()
)


@Prepared
def _wanted(name_or_arn: ColumnElement[str]) -> Select[Any]:
    is_named = or_(Cluster.name == name_or_arn, Cluster.arn == name_or_arn)
    columns = (getattr(Cluster, name) for name in _OF_CLUSTER)
    return select(*columns, _groups, RELEASES).where(is_named, Cluster.state != ClusterState.DELETED)


def described(session: Session, name_or_arn: str) -> Described:
    """Raises NotFound."""
    row = _wanted.one_or_none(session, name_or_arn)
    if row is None:
        raise NotFound(kind="Cluster", name=name_or_arn)
    *told, groups, releases = row
    cluster = dict(zip(_OF_CLUSTER, told, strict=True))
    seen = SeenCluster(**{**cluster, "state": ClusterState(cluster["state"])})
    return Described(seen, tuple(map(_read_group, groups or ())), read_releases(releases))


def _read_group(values: list[Any]) -> SeenGroup:
    group = dict(zip((*_OF_GROUP, _SERVING), values, strict=True))
    return SeenGroup(**{**group, "state": GroupState(group["state"])})
