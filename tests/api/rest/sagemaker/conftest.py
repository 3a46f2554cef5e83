"""One server for all tests of these routes, as for those of the other door."""

from __future__ import annotations

from tests.api.aws.conftest import broom, database_url, server, shared_database_url, shared_server

__all__ = ["broom", "database_url", "server", "shared_database_url", "shared_server"]
