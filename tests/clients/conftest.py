"""A server for each test of a client, and the place where clients with environments of their own are found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import serving
from tests.api.serving import Server, settings_for


@pytest.fixture
def server(database_url: str) -> Iterator[Server]:
    with serving(settings_for(database_url)) as server:
        yield server
