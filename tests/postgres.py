"""Real Postgres for tests: one server a test process, one migrated template, a copy for whoever commits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import sql

from models.session import connect

TEMPLATE = "everstep_template"
_ROOT = Path(__file__).parent.parent
_numbers = itertools.count(1)


def at_database(url: str, name: str) -> str:
    """The same server, another database."""
    return f"{url.rsplit('/', 1)[0]}/{name}"


def plain(url: str) -> str:
    """The address as psycopg and libpq read it, without SQLAlchemy's driver."""
    return url.replace("+psycopg", "")


def migrate(url: str) -> None:
    """Brings a database to the newest migration, as ``alembic upgrade head`` does."""
    config = Config(_ROOT / "alembic.ini")
    engine = connect(url, pool_size=1)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()


def create_database(url: str, name: str, *, template: str = "template1") -> str:
    """Makes a database and returns its address. From a template by file copy, which costs 18 ms; by WAL it would cost 34."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
    with psycopg.connect(plain(at_database(url, "postgres")), autocommit=True) as server:
        server.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
    return at_database(url, name)


def drop_database(url: str, name: str) -> None:
    """Drops a database, and whoever is still connected to it: a thread that a failed test left behind must not hang the suite."""
    with psycopg.connect(plain(at_database(url, "postgres")), autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def database_of_its_own(server: str) -> Iterator[str]:
    """A migrated, empty database that nobody else sees, dropped at the end."""
    name = f"test_{next(_numbers)}"
    url = create_database(server, name, template=TEMPLATE)
    try:
        yield url
    finally:
        drop_database(server, name)


class Ear:
    """Hears notifications of a database: what the relay and the directive streams would hear."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def heard(self, *, within_s: float = 5.0, at_least: int = 1) -> list[str]:
        """The payloads since the last call, in order. Waits for ``at_least`` of them (0: till the end), and no longer than ``within_s``."""
        return [note.payload for note in self._connection.notifies(timeout=within_s, stop_after=at_least or None)]


@contextmanager
def listening(url: str, *channels: str) -> Iterator[Ear]:
    with psycopg.connect(plain(url), autocommit=True) as connection:
        for channel in channels:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        yield Ear(connection)
