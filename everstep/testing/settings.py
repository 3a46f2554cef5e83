"""The environment variable that leads processes to their faults: set for as long as faults are injected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.protocol import FAULTS_VARIABLE


@contextmanager
def announced(path: Path) -> Iterator[None]:
    """Processes that this one starts within find their faults at ``path``; then the variable is again what it was."""
    before = os.environ.get(FAULTS_VARIABLE)
    os.environ[FAULTS_VARIABLE] = str(path)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(FAULTS_VARIABLE, None)
        else:
            os.environ[FAULTS_VARIABLE] = before
