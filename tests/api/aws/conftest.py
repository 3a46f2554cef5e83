"""One server for all tests of this door, on a database that is empty again for each of them: a server of its own would cost each 0.7 s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Delete, Engine, Table, update

from everstep.protocol import VERSION
from models import registry
from models.access.changes import BOOTSTRAP
from models.image.states import ReleaseState
from models.image.table import ImageRelease
from models.session import connect
from tests import postgres as db
from tests.api.conftest import serving
from tests.api.serving import Server, settings_for


@pytest.fixture(scope="session")
def shared_database_url(postgres: str) -> Iterator[str]:
    with db.database_of_its_own(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def shared_server(shared_database_url: str) -> Iterator[Server]:
    with serving(settings_for(shared_database_url)) as server:
        yield server


@pytest.fixture(scope="session")
def shared_client(shared_server: Server) -> Iterator[Any]:
    client = shared_server.client()
    yield client
    client.close()


@pytest.fixture(scope="session")
def broom(shared_database_url: str) -> Iterator[Engine]:
    engine = connect(shared_database_url, pool_size=1)
    yield engine
    engine.dispose()


def _own_rows(table: Table) -> Delete:
    """What a test wrote; our own image release and the first credentials are the server's."""
    if table.name == "image_release":
        return table.delete().where(table.c.version != VERSION)
    return table.delete().where(table.c.name != BOOTSTRAP) if table.name == "credential" else table.delete()


@pytest.fixture
def database_url(shared_database_url: str, broom: Engine) -> Iterator[str]:
    yield shared_database_url
    sweep(broom)


def sweep(broom: Engine) -> None:
    with broom.begin() as connection:
        for table in reversed(registry.metadata.sorted_tables):
            connection.execute(_own_rows(table))
        connection.execute(update(ImageRelease).values({"state": ReleaseState.AVAILABLE}))


@pytest.fixture
def server(shared_server: Server, database_url: str) -> Server:
    return shared_server


@pytest.fixture
def sagemaker(shared_client: Any, database_url: str) -> Any:
    return shared_client
