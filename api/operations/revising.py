"""What use-cases of scheduler configurations and of compute quotas share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.operations.work import Work
from models import revised
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.errors import in_transition
from models.paging import Cut
from models.revised import Change, Head, Kept, Order, Place, Revised, RevisedFilter, Revision


@dataclass(frozen=True)
class Wanted:
    """Which one, and which version of it; None is the newest."""

    id: str
    version: int | None = None


@dataclass(frozen=True)
class RevisedView:
    """``revision`` is the version that was asked for, the newest of ``head`` if none was."""

    head: Revised
    revision: Revision


@dataclass(frozen=True)
class Listing:
    wanted: RevisedFilter
    cut: Cut
    order: Order


def place(work: Work, cluster_arn: str) -> Place:
    """Locks the cluster: until the transaction ends nobody else makes or changes anything revised there.

    Raises:
        NotFound: no such cluster.
        InTransition: it is being deleted, and everything on it with it.
    """
    cluster = clusters.find(work.session, cluster_arn, lock=True)
    if cluster.state is ClusterState.DELETING:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb="a change of what is on it")
    return Place(cluster.id, cluster.arn, work.region, work.account_id)


def change(work: Work, settings: Mapping[str, Any], description: str | None) -> Change:
    return Change(settings=settings, description=description, by=caller_arn(work), at=work.now)


def caller_arn(work: Work) -> str:
    return f"arn:aws:iam::{work.account_id}:user/{work.caller.name}"


def locked(work: Work, head: type[Head], wanted_id: str) -> Head:
    """The row to be changed, after its cluster in the order of locks. Raises NotFound, InTransition."""
    place(work, revised.get(work.session, head, wanted_id).cluster_arn)
    return revised.get(work.session, head, wanted_id, lock=True)


def describe(work: Work, head: type[Head], kept: type[Kept], wanted: Wanted) -> RevisedView:
    """Raises NotFound: no such thing, or no such version of it."""
    row = revised.get(work.session, head, wanted.id)
    number = row.revision if wanted.version is None else wanted.version
    return RevisedView(row, revised.version(work.session, row, kept, number))
