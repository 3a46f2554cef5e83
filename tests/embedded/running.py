"""A small stack in a process of its own, as tests start, watch and kill it."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.embedded import procfs, state
from everstep.embedded.home import Home
from tests.patience import PATIENCE

SCRIPT = Path(__file__).with_name("small_stack.py")
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


class RunningStack:
    def __init__(self, home: Home, *extra: str, port: int = 0, python: str = sys.executable, **how):
        self.home = home
        self.lines = []
        self.process = subprocess.Popen(
            [python, str(SCRIPT), str(home.root), str(port), *extra],
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            cwd="/",
            **how,
        )

    def until(self, word: str) -> str:
        """Reads lines up to the one that has ``word`` in it."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if word in line:
                return line.rstrip()
        pytest.fail(f"{word!r} never came; it said: {self.lines}")

    def ready(self) -> "RunningStack":
        self.until("READY")
        return self

    def state(self) -> state.StackState:
        return state.read(self.home)

    def key(self, service: str) -> procfs.ProcessKey:
        return self.state().services[service].key

    def close(self) -> int:
        self.process.terminate()
        status = self.process.wait(30)
        self.process.stdout.close()
        return status

    def kill(self):
        self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()


@contextmanager
def running(home: Home, *extra: str, **how):
    stack = RunningStack(home, *extra, **how)
    try:
        yield stack.ready()
    finally:
        if stack.process.poll() is None:
            stack.close()
        stack.process.stdout.close()


def eventually(claim, seconds: float = 15.0):
    """Waits for something that another process is about to do."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not (value := claim()):
        assert time.monotonic() < deadline, f"not within {seconds * PATIENCE} s: {claim}"
        time.sleep(0.02)
    return value


def described(home: Home) -> dict:
    return json.loads(home.state.read_text())
