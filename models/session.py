"""Engines, units of work, and the one way to lock rows."""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, Select, create_engine, event, text
from sqlalchemy.exc import DisconnectionError, IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from models.text import dumps

Sessions = sessionmaker[Session]
Rows = TypeVar("Rows")

TEAM: Final = "team"
"""Where a session knows the team that its caller is bound to; ``models.access.scope`` writes it, and restricts what the session sees."""
ACROSS_TEAMS: Final = "across_teams"
"""An execution option: this statement sees the rows of every team. For what must be unique among all of them, and for bare counts."""

_READS: Final = "is_reading"


def connect(database_url: str, *, pool_size: int = 8, is_reading: bool = False) -> Engine:
    """An engine on Postgres (``postgresql+psycopg://…``). No overflow: a burst waits for a connection, it does not open a hundred.

    One that ``is_reading`` has no transactions: each statement sees what is committed when it begins, as it would inside of one, and three round
    trips become one. Nothing may be written through it that must be written whole.
    """
    engine = create_engine(
        database_url,
        pool_size=pool_size,
        max_overflow=0,
        connect_args={"connect_timeout": 5},
        json_serializer=dumps,
        hide_parameters=True,  # errors are logged, and parameters hold keys: of users, of nodes
        **({"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True} if is_reading else {}),
    )
    event.listen(engine, "checkout", _refuse_a_cut_one)
    engine.update_execution_options(**{_READS: is_reading})
    return engine


def is_reading(engine: Engine) -> bool:
    """Whether the engine is one that has no transactions."""
    return bool(engine.get_execution_options().get(_READS))


def _refuse_a_cut_one(connection: Any, _record: object, _proxy: object) -> None:
    """A connection from the pool whose server has gone is replaced before it is used. Asks the kernel, where a ping would ask the server.

    Nothing listens on these connections, so whatever the server has said unasked is its farewell.
    """
    waiting = select.poll()
    if not connection.closed:
        waiting.register(connection.fileno(), select.POLLIN)
    if connection.closed or waiting.poll(0):
        raise DisconnectionError


def sessions(engine: Engine) -> Sessions:
    return sessionmaker(engine, expire_on_commit=False)


@contextmanager
def unit_of_work(factory: Sessions) -> Iterator[Session]:
    """One transaction: committed at the end of the block, rolled back if the block raises."""
    with factory() as session, session.begin():
        yield session


@contextmanager
def look(factory: Sessions) -> Iterator[Session]:
    """A session for what only looks: whatever it has written is rolled back, where there are transactions at all."""
    with factory() as session:
        yield session


def team_of(session: Session) -> str | None:
    """The team that the session's caller is bound to; None for one who is not, and for everybody who is no caller."""
    team: str | None = session.info.get(TEAM)
    return team


def hurry(session: Session) -> None:
    """This transaction's commit does not wait for the disk: for what may be forgotten if the database's machine loses power now."""
    session.execute(text("SET LOCAL synchronous_commit TO off"))


def keep(session: Session, rows: Iterable[object]) -> None:
    """Keeps rows known to the session until it ends: it holds them weakly, and would read one again for every ``get`` after a snapshot."""
    session.info.setdefault("kept", []).extend(rows)


def locked(statement: Select[Rows]) -> Select[Rows]:
    """The same rows, locked until the transaction ends, as they are once the lock is held.

    Without ``populate_existing`` a row that the session had read before would keep the values of that time, and a decision under the lock
    would rest on them. The lock is NO KEY UPDATE: a stronger one would make an insert that merely refers to the row wait, against the
    order of locks, and deadlock.
    """
    return statement.with_for_update(key_share=True).execution_options(populate_existing=True)


def breaks(error: IntegrityError, constraint: str) -> bool:
    """Whether it was this constraint, or unique index, that refused."""
    diagnosis = getattr(error.orig, "diag", None)
    return diagnosis is not None and diagnosis.constraint_name == constraint
