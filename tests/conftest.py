"""Fixtures that every folder may use. Servers are real, and start once a test process, when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from everstep.embedded.postgres import ephemeral_postgres
from everstep.embedded.valkey import ephemeral_valkey
from models.session import Sessions, connect
from models.session import sessions as session_factory
from tests import postgres as db

pytest.register_assert_rewrite("tests.everstep.drills")  # its asserts are to tell what they have seen

# A busy machine is no counterexample. What fails is printed with what repeats it.
settings.register_profile("everstep", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("everstep")


_SHORT = ("api", "architecture", "models")
"""Folders of modules whose tests take a moment each."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that in the end no process works alone."""
    items.sort(key=lambda item: item.nodeid.split("/")[1] in _SHORT)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a migrated template database."""
    with ephemeral_postgres(tmp_path_factory.mktemp("pg")) as url:
        db.migrate(db.create_database(url, db.TEMPLATE))
        yield url


@pytest.fixture(scope="session")
def shared_engine(postgres: str) -> Iterator[Engine]:
    """An engine on the one database whose tests all roll back."""
    with db.database_of_its_own(postgres) as url:
        engine = connect(url, pool_size=2)
        yield engine
        engine.dispose()


@pytest.fixture
def session(shared_engine: Engine) -> Iterator[Session]:
    """A session whose work is rolled back, commits included; nobody else sees it, and nobody is notified. Costs a millisecond."""
    with shared_engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, expire_on_commit=False, join_transaction_mode="create_savepoint") as inside:
            yield inside
        outer.rollback()


@pytest.fixture
def database_url(postgres: str) -> Iterator[str]:
    """A migrated, empty database of the test's own, for real commits from any number of connections. Costs 30 ms."""
    with db.database_of_its_own(postgres) as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = connect(database_url, pool_size=8)
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> Sessions:
    """The session factory of the test's own database, made as the api and the workers make theirs."""
    return session_factory(engine)


@pytest.fixture
def listen(database_url: str) -> Iterator[Callable[..., db.Ear]]:
    """``listen(channel, …)`` gives an ear on the test's own database, from this moment on."""
    open_ears = []

    def listen(*channels: str) -> db.Ear:
        ear = db.listening(database_url, *channels)
        open_ears.append(ear)
        return ear.__enter__()

    yield listen
    for ear in open_ears:
        ear.__exit__(None, None, None)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ephemeral_valkey(tmp_path_factory.mktemp("vk")) as url:
        yield url


@pytest.fixture
def broker_url(valkey: str) -> str:
    """The address of an empty Valkey."""
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
    return valkey
