"""Use-cases of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.table import InstanceGroup
from models.image import queries as images
from models.image.queries import Releases
from models.image.states import Freshness
from models.node import queries
from models.node.queries import NodeFilter
from models.node.table import Node
from models.paging import Cut, Page


@dataclass(frozen=True)
class NodeListing:
    cluster: str
    wanted: NodeFilter
    cut: Cut
    by_name: bool


@dataclass(frozen=True)
class NodeChoice:
    """One node of a cluster, by exactly one of its ids: a replacement keeps the logical id and gets a new instance id."""

    cluster: str
    instance_id: str | None = None
    logical_id: str | None = None


@dataclass(frozen=True)
class NodeView:
    node: Node
    group: InstanceGroup
    releases: Releases
    zone: str


@dataclass(frozen=True)
class NodeRow:
    """A node in a listing; ``freshness`` is that of its release."""

    node: Node
    freshness: Freshness | None


def describe(work: Work, choice: NodeChoice) -> NodeView:
    """Raises NotFound: no such cluster, or no such node in it."""
    cluster = clusters.find(work.session, choice.cluster)
    node = queries.of_place(work.session, cluster.id, instance_id=choice.instance_id, logical_id=choice.logical_id)
    return NodeView(node, clusters.group(work.session, node.group_id), images.releases(work.session), cluster.zone)


def listed(work: Work, listing: NodeListing) -> Page[NodeRow]:
    """Raises NotFound: no such cluster."""
    cluster = clusters.find(work.session, listing.cluster)
    found = queries.listed(work.session, cluster.id, listing.wanted, listing.cut, by_name=listing.by_name)
    known = images.releases(work.session)
    freshness = {version: known.freshness(version) for version in {node.image for node in found.rows}}
    return Page(tuple(NodeRow(node, freshness[node.image]) for node in found.rows), found.cursor)
