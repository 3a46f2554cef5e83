"""Requests that may come twice: the answer to a token is kept, and given again instead of doing the work again.

``recall`` comes first in a transaction, ``remember`` last; in between the token is locked, so that of two requests with one token the second
waits for the first one's commit and then finds its answer. A token belongs to a scope (who asks, and for what), and to one request only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from models.base import Base
from models.errors import Invalid
from models.text import dumps, storable

KEEP: Final = timedelta(hours=8)
"""How long a token is good for, as SageMaker documents it for client tokens."""
LONGEST: Final = timedelta(hours=24)
"""No caller of ``recall`` looks back farther: what is older may be dropped."""


class Replay(Base):
    """One answered request. ``request`` is its digest: what was asked may be long, and may hold what is not to be kept."""

    __tablename__ = "replay"

    scope: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(primary_key=True)
    request: Mapped[str]
    answer: Mapped[dict[str, Any]]
    at: Mapped[datetime] = mapped_column(index=True)


def recall(
    session: Session, scope: str, token: str, request: Mapping[str, Any], *, now: datetime, keep: timedelta = KEEP
) -> dict[str, Any] | None:
    """The answer that was given to this very request, or None if it is to be carried out.

    Nobody else is answered for this token until the caller's transaction ends.

    Raises:
        Invalid: the token came with another request, or holds what cannot be stored.
    """
    if storable(token) != token:
        raise Invalid(message="A token must not hold U+0000 or half of a surrogate pair.")
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"replay\x1f{scope}\x1f{token}", 0))))
    kept = session.get(Replay, (scope, token), populate_existing=True)
    if kept is None or kept.at <= now - keep:
        return None
    if kept.request != _digest(request):
        raise Invalid(message=f"The token '{token}' was used for another request; a token is good for one request only.")
    return kept.answer


def remember(
    session: Session, scope: str, token: str, request: Mapping[str, Any], answer: Mapping[str, Any], *, now: datetime
) -> None:
    """Keeps the answer, for as long as ``recall`` is told to look back. One that has run out is overwritten."""
    statement = insert(Replay).values(scope=scope, token=token, request=_digest(request), answer=dict(answer), at=now)
    fresh = {"request": statement.excluded.request, "answer": statement.excluded.answer, "at": statement.excluded.at}
    session.execute(statement.on_conflict_do_update(index_elements=[Replay.scope, Replay.token], set_=fresh))


def forget(session: Session, *, before: datetime) -> int:
    """Drops the answers that were given before that time; returns how many there were."""
    return len(session.scalars(delete(Replay).where(Replay.at < before).returning(Replay.token)).all())


def _digest(request: Mapping[str, Any]) -> str:
    """Of members in any order; values that JSON has no word for, such as times, count by their text."""
    return hashlib.sha256(dumps(_plain(request)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(name): _plain(value[name]) for name in sorted(value, key=str)}
        case list() | tuple():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
