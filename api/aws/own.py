"""Runs an own operation for either door: one transaction of the caller's, page tokens signed and opened."""

from __future__ import annotations

from typing import Any

from api.aws.pages import PageTokens
from api.operations.work import Work
from api.own.kinds import Own
from api.own.wire import Asked, Wire


def perform(own: Own, work: Work, asked: Asked, tokens: PageTokens) -> Wire:
    """A page token belongs to the operation and its other members, whichever door issued it.

    Raises:
        DomainError: what the use-case refuses.
        Invalid: a page token of another question.
    """
    if own.page_of is None:
        return own.run(work, asked)
    question: dict[str, Any] = asked.model_dump(mode="json", by_alias=True)
    found = own.run(work, asked.model_copy(update={"next_token": tokens.redeem(own.name, question)}))
    cursor: str | None = getattr(found, "next_token", None)
    if cursor is None:
        return found
    return found.model_copy(update={"next_token": tokens.issue(own.name, question, cursor)})
