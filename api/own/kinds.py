"""What one of Everstep's own operations is.

It is defined once; REST and the AWS-JSON door serve it, OpenAPI and a botocore service model describe it, all from the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from api.operations.work import Work
from api.own.wire import Wire
from models.errors import DomainError


@dataclass(frozen=True)
class Own:
    """``path`` names members of ``takes`` in braces, in snake_case; the rest of them is the query of a GET or DELETE, else the body.

    A listing names in ``page_of`` the member of ``gives`` that holds its rows; ``takes`` then has ``next_token`` and ``max_results``, ``gives`` has
    ``next_token``. ``run`` is one transaction of the caller's; its docstring is the operation's description. ``errors`` are those that it may raise
    beside those of every operation.
    """

    name: str
    method: str
    path: str
    takes: type[Wire]
    gives: type[Wire]
    run: Callable[[Work, Any], Wire]
    status: int = 200
    page_of: str | None = None
    errors: tuple[type[DomainError], ...] = ()


OwnTable = tuple[Own, ...]
