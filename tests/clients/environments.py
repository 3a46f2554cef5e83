"""The environments that `make test-clients` builds, one a client: each has the dependencies that it wants, and nothing of ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).with_name("requirements")
ENVIRONMENTS = Path(__file__).parents[2] / ".venv-clients"


def program_of(client: str, program: str) -> Path:
    found = ENVIRONMENTS / client / "bin" / program
    if not found.exists():
        pytest.fail(f"{client} is not installed: `make test-clients` builds its environment")
    return found


def python_of(client: str) -> Path:
    return program_of(client, "python")


def run(command: list[str], exports: Mapping[str, str], home: Path, timeout: float = 100.0) -> subprocess.CompletedProcess[str]:
    """A client as its user starts it: told where Everstep is by the environment, and by nothing else."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONWARNINGS": "ignore", **exports}
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=timeout, check=False)
