"""Operations of spare pools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from api.operations import spare_pools
from api.operations.spare_pools import Pool
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, Wire
from models.errors import Forbidden, Invalid, NotFound

ClusterName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
GroupName = Annotated[str, StringConstraints(min_length=1, max_length=63)]


class SparePoolWanted(Asked):
    """``nodes`` free ones of the group are kept for what jobs lose; 0 keeps none. With ``auto`` there are as many as its faults make worth while.

    ``instance_group`` may be left out in a cluster that has one only.
    """

    cluster: ClusterName
    instance_group: GroupName | None = None
    nodes: Annotated[int, Field(ge=0, le=1000)] | None = None
    auto: bool = False


class SparePoolsWanted(Asked):
    cluster: ClusterName


class SparePoolShape(Wire):
    """``nodes`` are to be kept free, ``free_nodes`` of them are free now; ``auto``: how many is left to the planner."""

    instance_group: str
    nodes: int
    auto: bool
    free_nodes: int


class SparePoolList(Wire):
    pools: tuple[SparePoolShape, ...]


def put_pool(work: Work, asked: SparePoolWanted) -> SparePoolShape:
    """Says how many free nodes of a group are kept for what jobs lose: no new job, growth or spare is placed on them."""
    return _shape(spare_pools.put(work, asked.cluster, asked.instance_group, asked.nodes, is_sized=asked.auto))


def list_pools(work: Work, asked: SparePoolsWanted) -> SparePoolList:
    """The spare pools of a cluster's groups, and how many of their nodes are free."""
    return SparePoolList(pools=tuple(map(_shape, spare_pools.of_cluster(work, asked.cluster))))


def _shape(pool: Pool) -> SparePoolShape:
    return SparePoolShape(instance_group=pool.group, nodes=pool.nodes, auto=pool.is_sized, free_nodes=pool.free)


SPARE_POOLS: OwnTable = (
    Own(
        "PutSparePool",
        "POST",
        "/v1/spare-pools",
        SparePoolWanted,
        SparePoolShape,
        put_pool,
        errors=(NotFound, Invalid, Forbidden),
    ),
    Own("ListSparePools", "GET", "/v1/spare-pools", SparePoolsWanted, SparePoolList, list_pools, errors=(NotFound,)),
)
