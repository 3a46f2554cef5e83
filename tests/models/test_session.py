from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from models.cluster import queries
from models.errors import NotFound
from models.registry import metadata
from models.session import Sessions, unit_of_work
from tests import rows


def test_a_unit_of_work_commits_at_its_end(sessions: Sessions) -> None:
    with unit_of_work(sessions) as session:
        rows.cluster(session, "kept")
    with unit_of_work(sessions) as session:
        assert queries.find(session, "kept").name == "kept"


def test_a_unit_of_work_that_raises_leaves_nothing_behind(sessions: Sessions) -> None:
    def work() -> None:
        with unit_of_work(sessions) as session:
            rows.cluster(session, "dropped")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    with unit_of_work(sessions) as session, pytest.raises(NotFound):
        queries.find(session, "dropped")


def test_what_a_failed_statement_was_given_is_not_in_its_error(sessions: Sessions) -> None:
    """Errors are logged, and what is stored holds keys: of users in their jobs' variables, of nodes in what they are told."""
    with pytest.raises(DataError) as refused, unit_of_work(sessions) as session:
        session.execute(text("SELECT CAST(:number AS bigint), :key"), {"number": 2**70, "key": "hf_secret"})
    assert "hf_secret" not in str(refused.value)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_starts_from_an_empty_database(session: Session, turn: int) -> None:
    for table in metadata.sorted_tables:
        assert session.scalar(text(f'SELECT count(*) FROM "{table.name}"')) == 0, table.name
    rows.job(session, rows.cluster(session))
    session.commit()


def test_migrations_build_exactly_the_tables_that_the_models_declare(engine: Engine) -> None:
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata) == []


def test_migrations_can_be_taken_back(engine: Engine, database_url: str) -> None:
    config = Config(Path(__file__).parents[2] / "alembic.ini")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all() == ["alembic_version"]
