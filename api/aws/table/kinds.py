"""What an operation of the AWS door is: wire members in (``read``), the use-case (``run``), wire members out (``write``).

The tables beside this module hold the operations, one module a noun; ``sagemaker`` is all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from api.aws.pages import PageTokens
from api.operations.work import Work
from models.paging import Page

Members = Mapping[str, Any]


class Treatment(StrEnum):
    """What becomes of an input member."""

    HONOURED = "honoured"
    STORED = "stored and echoed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Member:
    """``note`` says how a member is honoured beyond the obvious, what does not happen to a stored one, or what to do instead of a refused one."""

    treatment: Treatment
    note: str = ""


Support = Mapping[str, Member]
"""Input members by their path in the service model: ``InstanceGroups[].LifeCycleConfig.OnCreate``; ``[]`` steps into a list, ``{}`` into a map."""


def honoured(*paths: str, note: str = "") -> dict[str, Member]:
    return {path: Member(Treatment.HONOURED, note) for path in paths}


def stored(*paths: str, note: str = "") -> dict[str, Member]:
    return {path: Member(Treatment.STORED, note) for path in paths}


def refused(remedies: Mapping[str, str]) -> dict[str, Member]:
    return {path: Member(Treatment.REFUSED, remedy) for path, remedy in remedies.items()}


@dataclass(frozen=True)
class Operation:
    """``note`` is what the documentation says about it beyond the service model.

    ``members`` tells of every input member that is known of; one that only the installed model knows is refused. ``absent`` are output members
    that are never written, with the reason.
    """

    read: Callable[[Members], Any]
    run: Callable[[Work, Any], Any]
    write: Callable[[Any], dict[str, Any]]
    note: str = ""
    members: Support = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Listing:
    """An operation that answers in pages. ``write`` may look at the request: what is shown can depend on what was asked."""

    read: Callable[[Members, str | None], Any]
    run: Callable[[Work, Any], Page[Any]]
    write: Callable[[tuple[Any, ...], Members], dict[str, Any]]
    note: str = ""
    members: Support = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


Table = dict[str, Operation | Listing]


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
