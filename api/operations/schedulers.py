"""Use-cases of scheduler configurations. They are kept and shown; ranking jobs by them is not this module's.

A cluster may have several, of different names. Whoever changes one locks its cluster first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api.operations import revising
from api.operations.revising import Listing, RevisedView
from api.operations.tags import check_keys
from api.operations.work import Work
from models import revised
from models.cluster.changes import put_tags
from models.errors import Invalid
from models.paging import Page
from models.scheduler import changes
from models.scheduler.table import SchedulerConfig, SchedulerConfigRevision

DEFAULTS: Mapping[str, Any] = {"FairShare": "Enabled"}


@dataclass(frozen=True)
class SchedulerWish:
    """A new configuration. ``config`` is what was sent, by wire name."""

    name: str
    cluster_arn: str
    config: Mapping[str, Any]
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SchedulerChange:
    """What a configuration is to become. A part that is None stays as it is; ``config`` replaces the whole one before."""

    config_id: str
    seen: int
    config: Mapping[str, Any] | None = None
    description: str | None = None


def create(work: Work, wish: SchedulerWish) -> SchedulerConfig:
    """Raises NotFound (no such cluster), InTransition (it is being deleted), Taken (the name) or Invalid."""
    check_keys(dict(wish.tags))
    place = revising.place(work, wish.cluster_arn)
    change = revising.change(work, {"SchedulerConfig": _completed(wish.config)}, wish.description)
    made = changes.request_config(work.session, place, wish.name, change)
    put_tags(work.session, made.arn, wish.tags)
    return made


def describe(work: Work, wanted: revising.Wanted) -> RevisedView:
    """The newest version, or the one that is asked for. Raises NotFound."""
    return revising.describe(work, SchedulerConfig, SchedulerConfigRevision, wanted)


def update(work: Work, change: SchedulerChange) -> SchedulerConfig:
    """Makes the next version, of whatever changes.

    Raises:
        NotFound, InTransition, Invalid: no such configuration; its cluster is being deleted; the change cannot be.
        Outdated: somebody else has changed it since the caller looked.
    """
    config = revising.locked(work, SchedulerConfig, change.config_id)
    settings = {} if change.config is None else {"SchedulerConfig": _completed(change.config)}
    revision = revising.change(work, settings, change.description)
    changes.request_revision(work.session, config, revision, seen=change.seen)
    return config


def delete(work: Work, config_id: str) -> None:
    """Raises NotFound, also when it has been deleted before."""
    changes.request_end(work.session, revising.locked(work, SchedulerConfig, config_id), now=work.now)


def listed(work: Work, listing: Listing) -> Page[SchedulerConfig]:
    return revised.listed(work.session, SchedulerConfig, listing.wanted, listing.cut, order=listing.order)


def _completed(config: Mapping[str, Any]) -> dict[str, Any]:
    classes = config.get("PriorityClasses", ())
    names = [wanted["Name"] for wanted in classes]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(message=f"PriorityClasses has the name '{name}' twice.")
    return {**DEFAULTS, **config}
