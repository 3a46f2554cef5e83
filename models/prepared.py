"""Statements that are asked for all the time: written by SQLAlchemy once, then carried out by psycopg itself, at a third of the cost.

Only where nothing is lost by it: through an engine without transactions, and for callers who see every team's rows. All others go the usual way,
with the same statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import psycopg
from sqlalchemy import BindParameter, ColumnElement, Engine, Select, bindparam, literal_column
from sqlalchemy.dialects.postgresql import psycopg as dialects
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from models.session import is_reading, team_of

Make = Callable[[ColumnElement[Any]], Select[Any]]


class Prepared:
    """``make`` writes the statement around its one parameter, a text that comes from outside; whatever else is in it must be ours.

    Its columns arrive as psycopg reads them: an enumeration as its value.
    """

    def __init__(self, make: Make) -> None:
        self._make = make

    def one_or_none(self, session: Session, value: str) -> Sequence[Any] | None:
        """The one row; None if there is none."""
        engine = session.get_bind()
        if not isinstance(engine, Engine) or not is_reading(engine) or team_of(session) is not None:
            return session.execute(self._statement, {"value": value}).one_or_none()
        connection = engine.raw_connection()
        driver: Any = connection.driver_connection
        try:
            row: Sequence[Any] | None = driver.execute(self._text, {"value": value}).fetchone()
        except psycopg.Error as error:
            # As SQLAlchemy tells it: whoever decides what is worth another try knows its errors, not psycopg's.
            raise DBAPIError.instance(None, None, error, psycopg.Error, hide_parameters=True) from error
        finally:
            connection.close()
        return row

    @cached_property
    def _statement(self) -> Select[Any]:
        value: BindParameter[str] = bindparam("value")
        return self._make(value)

    @cached_property
    def _text(self) -> str:
        marked = self._make(literal_column("<value>"))
        dialect: Any = dialects.dialect
        written = marked.compile(dialect=dialect(), compile_kwargs={"literal_binds": True})
        return str(written).replace("<value>", "%(value)s")
