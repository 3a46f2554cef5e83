"""The real program against a real API, as a user types it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result
from typer.testing import CliRunner

from everstep.cli.main import app
from tests.live import ThreadedApi, api, bearer, hosted, look, place, work

__all__ = ["api", "bearer", "hosted", "look", "place", "work"]

Type = Callable[..., Result]


@pytest.fixture
def type_(api: ThreadedApi, bearer: str, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Types a command and returns what came of it."""
    monkeypatch.setenv("EVERSTEP_URL", api.url)
    monkeypatch.setenv("EVERSTEP_TOKEN", bearer)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])
