"""What one of Everstep's own operations is.

It is defined once; REST and the AWS-JSON door serve it, OpenAPI and a botocore service model describe it, all from the same table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_pascal

from api.operations.work import Work
from api.own.wire import Asked, Wire
from models.errors import DomainError


@dataclass(frozen=True)
class Own:
    """``path`` names members of ``takes`` in braces, in snake_case; the rest of them is the query of a GET or DELETE, else the body.

    ``run`` is one transaction of the caller's; the first paragraph of its docstring is the operation's description. ``errors`` are those that it
    may raise beside those of every operation. Who may call it follows from its name (``api.auth.need_of``).

    A listing names in ``page_of`` the member of ``gives`` that holds its rows; ``takes`` then has ``next_token`` and ``max_results``, ``gives`` has
    ``next_token``. For ``run`` both tokens are cursors of ``models.paging``: the doors sign them, and open what they have signed.

    A member ``client_token`` of ``takes`` makes a repetition the same as the first call: REST takes it from ``Idempotency-Key`` too, and boto3
    fills it in. If the operation ``remembers``, the doors keep the answer and give it again (``models.replay``); else the token is ``run``'s affair.
    """

    name: str
    method: str
    path: str
    takes: type[Asked]
    gives: type[Wire]
    run: Callable[[Work, Any], Wire]
    status: int = 200
    page_of: str | None = None
    errors: tuple[type[DomainError], ...] = ()
    read: Callable[[Mapping[str, Any]], Asked] | None = None
    """Makes ``takes`` of a body that has errors of its own to tell; it raises DomainError. None: pydantic's validation, strictly."""
    document: str = "The request body"
    """What messages call the body."""
    remembers: bool = False
    also: Mapping[str, str] = field(default_factory=dict)
    """Other names of a query, and the members of ``takes`` that they mean."""

    @property
    def in_path(self) -> tuple[str, ...]:
        """Members of ``takes`` that the path holds, in snake_case."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def has_body(self) -> bool:
        """Whether members come in a body; an operation that takes nothing beyond its path has none."""
        return self.method not in {"GET", "DELETE"} and bool(set(self.takes.model_fields) - set(self.in_path))

    @property
    def description(self) -> str:
        """In one paragraph."""
        return " ".join((self.run.__doc__ or "").partition("\n\n")[0].split())

    @property
    def rows(self) -> str | None:
        """``page_of`` as it is written on the wire."""
        return None if self.page_of is None else to_pascal(self.page_of)


OwnTable = tuple[Own, ...]
