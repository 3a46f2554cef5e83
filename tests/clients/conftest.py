"""A server for each test of a client, and one whole stack for those that need workers and nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.api.conftest import serving
from tests.api.serving import Server, settings_for
from tests.system.stack import Stack, running_stack


@pytest.fixture
def server(database_url: str) -> Iterator[Server]:
    with serving(settings_for(database_url)) as server:
        yield server


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("clients")) as stack:
        yield stack


@pytest.fixture
def cluster_name(stack: Stack, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name of its own for a test's cluster, which is deleted at the end, whatever happened."""
    name = f"c-{request.node.name[:20].strip('_').replace('_', '-').rstrip('-')}-{time.time_ns() % 100_000}"
    yield name
    stack.delete_cluster(name)
