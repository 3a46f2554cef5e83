"""The examples run, alone and as a job that loses a rank."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.protocol import Launch
from tests.everstep.plane import Job, Plane
from tests.patience import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"
RESILIENT = ("accelerate", "lightning")


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: `pip install {package}`")


@pytest.mark.parametrize("package", RESILIENT)
def test_a_framework_in_the_resilient_loop_runs_alone(package: str) -> None:
    needs(package)
    script = EXAMPLES / f"{package}_resilient.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    done = subprocess.run(
        [sys.executable, str(script), "5"], env=environment, capture_output=True, text=True, timeout=120 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "trained 5 steps as rank 0 of 1" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("package", RESILIENT)
def test_a_framework_in_the_resilient_loop_survives_a_killed_rank_without_losing_a_step(package: str, tmp_path: Path) -> None:
    needs(package)
    unbroken = losses(package, tmp_path / "unbroken", kill=False)
    broken = losses(package, tmp_path / "broken", kill=True)
    assert sorted(unbroken) == list(range(200))
    assert broken == unbroken


def losses(package: str, folder: Path, *, kill: bool) -> dict[int, float | None]:
    async def whole() -> Job:
        plane = Plane(folder, 2, {"PATH": os.environ["PATH"]})
        script = EXAMPLES / f"{package}_resilient.py"
        job = Job(package, Launch((sys.executable, str(script), "200"), str(folder), seed=3), replicas=2, spares=1)
        await plane.start()
        try:
            await plane.submit(job)
            if kill:
                await plane.until(lambda: max(job.losses, default=0) > 20, 120)
                os.kill(job.pids[job.members[1]], signal.SIGKILL)
            await plane.finish(job, 180)
        finally:
            await plane.stop()
        return job

    job = asyncio.run(whole())
    assert not kill or len(job.generations) > 1
    return job.losses


def test_the_readme_names_every_example() -> None:
    named = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text()))
    assert named == {path.name for path in EXAMPLES.glob("*.py")}
