"""Runs migrations on the database that EVERSTEP_DATABASE_URL names."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection

from models.registry import metadata
from models.session import connect

_LOCK = 0x65766572
"""An advisory lock: two control planes that start at once migrate one after the other."""


def run() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        _migrate(given)
        return
    engine = connect(os.environ["EVERSTEP_DATABASE_URL"], pool_size=1)
    with engine.begin() as connection:
        _migrate(connection)
    engine.dispose()


def _migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, compare_type=True)
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    with context.begin_transaction():
        context.run_migrations()


run()
