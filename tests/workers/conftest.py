from __future__ import annotations

import logging

import pytest

from models.notify import NUDGE
from tests.workers.small_plane import SmallPlane


@pytest.fixture
def plane(sessions, listen, caplog):
    """Fails the test if a reconciliation failed: the driver would only try again."""
    yield SmallPlane(sessions, listen(NUDGE))
    assert not [record.exc_text for record in caplog.records if record.name == "workers.driver" and record.levelno >= logging.ERROR]
