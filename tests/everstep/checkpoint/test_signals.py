from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import everstep
from everstep.checkpoint.tiers import Tiers
from everstep.testing import arm
from tests.patience import PATIENCE

SCRIPT = Path(__file__).parents[1] / "scripts" / "train.py"
PROGRAM = """
import signal, sys, time
from everstep.checkpoint.signals import Leaving

kind = sys.argv[1]
if kind == "has-own":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
leaving = Leaving(0.3, lambda: kind != "in-no-step")
print(leaving.install(), flush=True)
until = time.monotonic() + 30
while time.monotonic() < until and not (leaving.is_asked and kind == "saves"):
    time.sleep(0.01)
leaving.leave()
"""


def begun(arguments: Sequence[object], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    common = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(everstep.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env={**kept, **common, **(environment or {})}, text=True, stdout=subprocess.PIPE
    )


@pytest.mark.parametrize(
    ("kind", "is_installed", "code"),
    [
        ("saves", True, -signal.SIGTERM),
        ("in-no-step", True, -signal.SIGTERM),
        ("hangs", True, -signal.SIGKILL),
        ("has-own", False, 7),
    ],
)
def test_a_process_that_is_told_to_end_ends_as_told_whatever_it_is_doing(kind: str, is_installed: bool, code: int) -> None:
    process = begun(["-c", PROGRAM, kind])
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{is_installed}\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(25) == code
    finally:
        process.kill()
        process.communicate()


def test_a_resilient_run_that_is_told_to_end_saves_its_step_and_goes_on_from_it(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    environment = {"EVERSTEP_DURABLE_URL": (tmp_path / "objects").as_uri(), "EVERSTEP_NAMESPACE": "ns"}
    arm(tmp_path / "faults", [])
    arguments = [SCRIPT, "ddp", tmp_path, 200_000, tmp_path / "faults", 100_000, 100_000]
    process = begun(arguments, environment)
    try:
        until(lambda: len(steps(tmp_path)) > 5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    done = steps(tmp_path)
    (found,) = Tiers.from_environment(environment).latest()
    assert (found.step, found.is_durable) == (len(done) + 1, True), (
        "the note on the last step comes after the save that ended the process"
    )
    arguments[3] = found.step + 3
    again = begun(arguments, environment)
    again.communicate(timeout=60)
    assert again.returncode == 0
    assert sorted(steps(tmp_path)) == [*range(found.step - 1), *range(found.step, found.step + 3)]


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for path in folder.glob("losses-*.jsonl") for line in path.read_text().splitlines()]


def until(claim: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s * PATIENCE
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)
