"""Pages of an ordered listing, by key: no offset, so rows that come or go between two pages neither repeat nor hide others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, DateTime, Integer, Select, tuple_
from sqlalchemy.orm import Session

from models.errors import Invalid

Row = TypeVar("Row")
Key = tuple[Any, Any]
"""What a listing is ordered by, and what decides between equals. Together they are unique."""


@dataclass(frozen=True)
class Cut:
    """Which part of a listing is wanted: at most ``limit`` rows after ``cursor``, from the start if it is None."""

    limit: int
    is_descending: bool = False
    cursor: str | None = None


@dataclass(frozen=True)
class Page(Generic[Row]):
    """``cursor`` continues after the last row; None: there is nothing more."""

    rows: tuple[Row, ...]
    cursor: str | None


def page(
    session: Session,
    statement: Select[Row],
    columns: tuple[ColumnElement[Any] | Any, ColumnElement[Any] | Any],
    key_of: Callable[[Row], Key],
    cut: Cut,
) -> Page[Row]:
    """One page of ``statement``, ordered by ``columns``; ``key_of`` reads the same two values from a row.

    Raises:
        Invalid: the cursor is not one of this listing's.
    """
    if cut.cursor is not None:
        after = tuple_(*_read(cut.cursor, (_kind(columns[0]), _kind(columns[1]))))
        here = tuple_(*columns)
        statement = statement.where(here < after if cut.is_descending else here > after)
    order = [column.desc() if cut.is_descending else column.asc() for column in columns]
    found: Sequence[Row] = session.scalars(statement.order_by(*order).limit(cut.limit + 1)).all()
    rows = tuple(found[: cut.limit])
    return Page(rows, _write(key_of(rows[-1])) if len(found) > cut.limit else None)


def _write(key: Key) -> str:
    value, tie = key
    moment = isinstance(value, datetime)
    return json.dumps([value.isoformat() if moment else value, tie, moment])


def _read(cursor: str, kinds: tuple[type, type]) -> Key:
    """A cursor may come from anywhere: a value of another kind than its column's would be the database's error, not the caller's."""
    try:
        value, tie, moment = json.loads(cursor)
        key = (datetime.fromisoformat(value) if moment else value, tie)
    except (ValueError, TypeError) as error:
        raise Invalid(message="The page cursor cannot be read.") from error
    if not all(isinstance(part, kind) for part, kind in zip(key, kinds, strict=True)):
        raise Invalid(message="The page cursor is not one of this listing's.")
    return key


def _kind(column: ColumnElement[Any] | Any) -> type:
    if isinstance(column.type, DateTime):
        return datetime
    return int if isinstance(column.type, Integer) else str
