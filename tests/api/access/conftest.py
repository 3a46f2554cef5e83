"""The same server as for the tests of AWS's door, and people who hold keys of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests import postgres as db
from tests.api.access.holders import Holder, give
from tests.api.aws.conftest import broom, database_url, server, shared_database_url, shared_server
from tests.api.conftest import serving
from tests.api.serving import Server, settings_for

__all__ = ["broom", "database_url", "server", "shared_database_url", "shared_server"]

Hold = Callable[..., Holder]


@contextmanager
def holding(server: Server) -> Iterator[Hold]:
    """``hold(role, team)`` gives keys to somebody new."""
    with ExitStack() as open_clients:
        yield lambda role="Operator", team=None, **more: open_clients.enter_context(give(server, role=role, team=team, **more))


@pytest.fixture
def hold(server: Server) -> Iterator[Hold]:
    with holding(server) as hold:
        yield hold


@pytest.fixture
def server_alone(postgres: str) -> Iterator[Server]:
    """A server of the test's own, for what would leave the shared one without its keys."""
    with db.database_of_its_own(postgres) as url, serving(settings_for(url)) as alone:
        yield alone
