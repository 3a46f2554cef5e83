"""Engines and units of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session, sessionmaker

Sessions = sessionmaker[Session]


def connect(database_url: str, *, pool_size: int = 8) -> Engine:
    """An engine on Postgres (``postgresql+psycopg://…``). No overflow: a burst waits for a connection, it does not open a hundred."""
    return create_engine(database_url, pool_size=pool_size, max_overflow=0, pool_pre_ping=True, connect_args={"connect_timeout": 5})


def sessions(engine: Engine) -> Sessions:
    return sessionmaker(engine, expire_on_commit=False)


@contextmanager
def unit_of_work(factory: Sessions) -> Iterator[Session]:
    """One transaction: committed at the end of the block, rolled back if the block raises."""
    with factory() as session, session.begin():
        yield session
