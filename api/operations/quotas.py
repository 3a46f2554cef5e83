"""Use-cases of compute quotas. They are kept and shown; admitting jobs by them is not this module's.

A cluster has one quota for a team, and any number for teams. That their sum fits into the cluster is not asked: clusters grow and shrink, and a
quota may be written before its nodes are there. Whoever changes one locks its cluster first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api.operations import revising
from api.operations.quota_rules import check_config
from api.operations.revising import Listing, RevisedView
from api.operations.tags import check_keys
from api.operations.work import Work
from models import revised
from models.cluster.changes import put_tags
from models.paging import Page
from models.quota import changes
from models.quota.table import ComputeQuota, ComputeQuotaRevision

BORROW_LIMIT = 50
"""Percent of idle compute; what a team may borrow that says nothing else."""


@dataclass(frozen=True)
class QuotaWish:
    """A new quota. ``config`` and ``target`` are what was sent, by wire name; ``activation`` is Enabled or Disabled."""

    name: str
    cluster_arn: str
    config: Mapping[str, Any]
    target: Mapping[str, Any]
    activation: str = "Enabled"
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QuotaChange:
    """What a quota is to become. A part that is None stays as it is; ``config`` and ``target`` replace the whole ones before."""

    quota_id: str
    seen: int
    config: Mapping[str, Any] | None = None
    target: Mapping[str, Any] | None = None
    activation: str | None = None
    description: str | None = None


def create(work: Work, wish: QuotaWish) -> ComputeQuota:
    """Raises NotFound (no such cluster), InTransition (it is being deleted), Taken (the name, or the team), Invalid or Unsupported."""
    check_keys(dict(wish.tags))
    settings = _settings(wish.config, wish.target, wish.activation)
    place = revising.place(work, wish.cluster_arn)
    change = revising.change(work, settings, wish.description)
    made = changes.request_quota(work.session, place, wish.name, wish.target["TeamName"], change)
    put_tags(work.session, made.arn, wish.tags)
    return made


def describe(work: Work, wanted: revising.Wanted) -> RevisedView:
    """The newest version, or the one that is asked for. Raises NotFound."""
    return revising.describe(work, ComputeQuota, ComputeQuotaRevision, wanted)


def update(work: Work, change: QuotaChange) -> ComputeQuota:
    """Makes the next version, of whatever changes.

    Raises:
        NotFound, InTransition, Invalid, Unsupported: no such quota; its cluster is being deleted; the change cannot be.
        Outdated: somebody else has changed it since the caller looked.
        Taken: the cluster has another quota for that team.
    """
    settings = _settings(change.config, change.target, change.activation)
    quota = revising.locked(work, ComputeQuota, change.quota_id)
    team = quota.team if change.target is None else change.target["TeamName"]
    revision = revising.change(work, settings, change.description)
    changes.request_revision(work.session, quota, team, revision, seen=change.seen)
    return quota


def delete(work: Work, quota_id: str) -> None:
    """Raises NotFound, also when it has been deleted before."""
    changes.request_end(work.session, revising.locked(work, ComputeQuota, quota_id), now=work.now)


def listed(work: Work, listing: Listing) -> Page[ComputeQuota]:
    return revised.listed(work.session, ComputeQuota, listing.wanted, listing.cut, order=listing.order)


def _settings(config: Mapping[str, Any] | None, target: Mapping[str, Any] | None, activation: str | None) -> dict[str, Any]:
    """What was given, completed by what holds when nothing is said. Raises Invalid or Unsupported for what cannot be."""
    settings: dict[str, Any] = {}
    if config is not None:
        check_config(config)
        sharing = config.get("ResourceSharingConfig", {"Strategy": "LendAndBorrow"})
        limit = {"BorrowLimit": BORROW_LIMIT} if sharing["Strategy"] == "LendAndBorrow" else {}
        settings["ComputeQuotaConfig"] = {
            "PreemptTeamTasks": "LowerPriority",
            **config,
            "ResourceSharingConfig": {**limit, **sharing},
        }
    if target is not None:
        settings["ComputeQuotaTarget"] = {"FairShareWeight": 0, **target}
    if activation is not None:
        settings["ActivationState"] = activation
    return settings
