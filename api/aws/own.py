"""Runs an own operation for either door: one transaction of the caller's, page tokens signed and opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from api.aws.pages import PageTokens
from api.operations.work import Work
from api.own.kinds import Own
from api.own.wire import Asked, Wire
from models import replay
from models.errors import Invalid


def read(own: Own, members: Mapping[str, Any]) -> Asked:
    """What is asked, from members that are valid by the service model; an operation may be stricter than a model can say.

    Raises:
        DomainError: what the operation's own reading refuses.
    """
    if own.read is not None:
        return own.read(members)
    try:
        return own.takes.model_validate(members)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg'].removeprefix('Value error, ')}" for item in found)
        raise Invalid(message=told) from error


def perform(own: Own, work: Work, asked: Asked, tokens: PageTokens) -> Wire:
    """A page token belongs to the operation and its other members, whichever door issued it.

    Raises:
        DomainError: what the use-case refuses.
        Invalid: a page token of another question.
    """
    if own.remembers:
        return _once(own, work, asked)
    if own.page_of is None:
        return own.run(work, asked)
    question: dict[str, Any] = asked.model_dump(mode="json", by_alias=True)
    found = own.run(work, asked.model_copy(update={"next_token": tokens.redeem(own.name, question)}))
    cursor: str | None = getattr(found, "next_token", None)
    if cursor is None:
        return found
    return found.model_copy(update={"next_token": tokens.issue(own.name, question, cursor)})


def _once(own: Own, work: Work, asked: Asked) -> Wire:
    """A token belongs to who sent it first, and to one request. Raises Invalid if it came with another one."""
    token: str | None = getattr(asked, "client_token", None)
    if token is None:
        return own.run(work, asked)
    scope = f"{work.account_id}/{work.caller.key_id or work.caller.name} {own.name}"
    request: dict[str, Any] = asked.model_dump(mode="json", by_alias=True)
    kept = replay.recall(work.session, scope, token, request, now=work.now)
    if kept is not None:
        return own.gives.model_validate(kept)
    found = own.run(work, asked)
    replay.remember(work.session, scope, token, request, found.model_dump(mode="json", by_alias=True), now=work.now)
    return found
