"""Use-cases of tags, of any resource that has an ARN: clusters, scheduler configurations and compute quotas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from api.operations.work import Work
from models import revised
from models.cluster import changes, queries
from models.cluster.table import Tag
from models.errors import Invalid, LimitExceeded, NotFound
from models.quota.table import ComputeQuota
from models.scheduler.table import SchedulerConfig

MOST_TAGS = 50
RESERVED = "aws:"
_REVISED: dict[str, type[revised.Revised]] = {"cluster-scheduler-config": SchedulerConfig, "compute-quota": ComputeQuota}
"""Resources of a cluster that are tagged themselves, by the noun of their ARNs."""


@dataclass(frozen=True)
class TagWish:
    arn: str
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TagRemoval:
    arn: str
    keys: tuple[str, ...]


def add(work: Work, wish: TagWish) -> Sequence[Tag]:
    """Adds tags, or overwrites the values of present keys, and returns all that the resource has.

    Raises:
        NotFound: no live resource has this ARN.
        Invalid: a key is reserved.
        LimitExceeded: the resource would have too many.
    """
    check_keys(wish.tags)
    _lock(work, wish.arn)
    changes.put_tags(work.session, wish.arn, wish.tags)
    tags = queries.tags(work.session, wish.arn)
    if len(tags) > MOST_TAGS:
        raise LimitExceeded(what="The number of tags", wanted=len(tags), limit=MOST_TAGS, remedy="Delete some first.")
    return tags


def listed(work: Work, arn: str) -> Sequence[Tag]:
    """In the order in which the keys were first written. Raises NotFound."""
    _find(work, arn)
    return queries.tags(work.session, arn)


def remove(work: Work, removal: TagRemoval) -> None:
    """Removes tags; a key that is not there is no error. Raises NotFound."""
    _lock(work, removal.arn)
    changes.drop_tags(work.session, removal.arn, removal.keys)


def check_keys(keys: dict[str, str]) -> None:
    """Raises Invalid for a key in the name space that AWS keeps for itself."""
    for key in keys:
        if key.lower().startswith(RESERVED):
            raise Invalid(message=f"Tag key '{key}' is reserved: keys must not start with '{RESERVED}'.")


def _lock(work: Work, arn: str) -> None:
    """Tags of one resource change one after another: else two callers could pass the limit together."""
    _find(work, arn, lock=True)


def _find(work: Work, arn: str, *, lock: bool = False) -> None:
    """``lock`` locks the cluster, which is what the resource is or where it is. Raises NotFound."""
    for noun, head in _REVISED.items():
        if f":{noun}/" in arn:
            row = revised.by_arn(work.session, head, arn)
            if row is None:
                raise NotFound(kind=head.NOUN, name=arn)
            queries.find(work.session, row.cluster_arn, lock=lock)
            return
    if ":cluster/" not in arn:
        raise NotFound(kind="Resource", name=arn)
    queries.find(work.session, arn, lock=lock)
