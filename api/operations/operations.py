"""Use-cases of cluster operations: what was asked of a cluster, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.table import Cluster
from models.operation import queries
from models.operation.queries import OperationFilter
from models.operation.table import Operation
from models.paging import Cut, Page


@dataclass(frozen=True)
class OperationListing:
    cluster: str
    wanted: OperationFilter
    cut: Cut


@dataclass(frozen=True)
class OperationChoice:
    cluster: str
    operation_id: str


@dataclass(frozen=True)
class OperationView:
    operation: Operation
    cluster: Cluster


def listed(work: Work, listing: OperationListing) -> Page[OperationView]:
    """Raises NotFound."""
    cluster = clusters.find(work.session, listing.cluster)
    found = queries.listed(work.session, cluster.id, listing.wanted, listing.cut, now=work.now)
    return Page(tuple(OperationView(row, cluster) for row in found.rows), found.cursor)


def describe(work: Work, choice: OperationChoice) -> OperationView:
    """Raises NotFound: no such cluster, or no such operation of it in the last 14 days."""
    cluster = clusters.find(work.session, choice.cluster)
    return OperationView(queries.find(work.session, cluster.id, choice.operation_id, now=work.now), cluster)
