"""Use-cases of tags, of any resource that has an ARN. Clusters are the only ones so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from api.operations.work import Work
from models.cluster import changes, queries
from models.cluster.table import Tag
from models.errors import Invalid, LimitExceeded

MOST_TAGS = 50
RESERVED = "aws:"


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
    queries.find(work.session, arn)
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
    queries.find(work.session, arn, lock=True)
