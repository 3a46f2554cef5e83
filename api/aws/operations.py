"""Every operation that the AWS door serves: one table, from which routing and documentation follow.

An operation is three functions: wire members in (``read``), the use-case (``run``), wire members out (``write``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.aws.pages import PageTokens
from api.aws.translate import clusters as wire_clusters
from api.aws.translate import events as wire_events
from api.aws.translate import nodes as wire_nodes
from api.aws.translate import tags as wire_tags
from api.operations import clusters, events, nodes, tags
from api.operations.work import Work
from models.paging import Page

Members = Mapping[str, Any]


@dataclass(frozen=True)
class Operation:
    """``note`` is what the documentation says about it beyond the service model."""

    read: Callable[[Members], Any]
    run: Callable[[Work, Any], Any]
    write: Callable[[Any], dict[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class Listing:
    """An operation that answers in pages. ``write`` may look at the request: what is shown can depend on what was asked."""

    read: Callable[[Members, str | None], Any]
    run: Callable[[Work, Any], Page[Any]]
    write: Callable[[tuple[Any, ...], Members], dict[str, Any]]
    note: str = ""


SAGEMAKER: dict[str, Operation | Listing] = {
    "CreateCluster": Operation(
        wire_clusters.read_create,
        clusters.create,
        wire_clusters.write_arn,
        note="Answers as soon as the wish is stored. A name is taken until its cluster is deleted.",
    ),
    "DescribeCluster": Operation(
        wire_clusters.read_name,
        clusters.describe,
        wire_clusters.write_description,
        note="Groups come in the caller's order; members that were not sent stay absent.",
    ),
    "UpdateCluster": Operation(
        wire_clusters.read_update,
        clusters.update,
        wire_clusters.write_arn,
        note=(
            "Groups are matched by name; unlisted ones stay as they are. Mutable members that are left out keep their value; an immutable one "
            "that is left out or changed is refused. A call that changes nothing starts nothing."
        ),
    ),
    "DeleteCluster": Operation(
        wire_clusters.read_name,
        clusters.delete,
        wire_clusters.write_arn,
        note="Idempotent while the cluster is Deleting; ResourceNotFound afterwards.",
    ),
    "ListClusters": Listing(wire_clusters.read_listing, clusters.listed, lambda rows, _members: wire_clusters.write_listing(rows)),
    "ListClusterNodes": Listing(
        wire_nodes.read_listing,
        nodes.listed,
        wire_nodes.write_listing,
        note="SortBy NAME orders by instance group. A node without an instance shows only with IncludeNodeLogicalIds, with an empty InstanceId.",
    ),
    "DescribeClusterNode": Operation(wire_nodes.read_choice, nodes.describe, wire_nodes.write_details),
    "ListClusterEvents": Listing(
        wire_events.read_listing,
        events.listed,
        lambda rows, _members: wire_events.write_listing(rows),
        note="Continuous clusters only, as on HyperPod.",
    ),
    "AddTags": Operation(wire_tags.read_add, tags.add, wire_tags.write_tags, note="Returns all tags of the resource."),
    "ListTags": Operation(wire_tags.read_list, tags.listed, wire_tags.write_tags, note="Always a single page: 50 tags at most."),
    "DeleteTags": Operation(wire_tags.read_remove, tags.remove, wire_tags.write_nothing),
}


def perform(name: str, operation: Operation | Listing, work: Work, members: Members, tokens: PageTokens) -> dict[str, Any]:
    """Runs one operation inside the caller's transaction and returns the members of its answer, by wire name.

    Raises:
        DomainError: what the use-case refuses.
    """
    if isinstance(operation, Operation):
        return operation.write(operation.run(work, operation.read(members)))
    page = operation.run(work, operation.read(members, tokens.redeem(name, members)))
    answer = operation.write(page.rows, members)
    if page.cursor is not None:
        answer["NextToken"] = tokens.issue(name, members, page.cursor)
    return answer
