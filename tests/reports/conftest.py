"""A real server on a database of the test's own, and an unmodified boto3 client whose answers are held against the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.conftest import serving
from tests.api.serving import Server, settings_for


@pytest.fixture
def server(database_url: str) -> Iterator[Server]:
    with serving(settings_for(database_url)) as server:
        yield server


@pytest.fixture
def sagemaker(server: Server) -> Iterator[Any]:
    client = server.client()
    yield client
    client.close()
