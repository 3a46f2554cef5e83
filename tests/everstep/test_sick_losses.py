"""Sick losses in whole runs: what is passed over, what is gone back to, and that all ranks do alike."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.evidence import AnomalyReport
from everstep.protocol import Source
from everstep.testing import Fault, arm
from tests.everstep.checkpoint.test_poison import Store
from tests.everstep.plane import Job, JobFailed, Plane, script_launch
from tests.patience import PATIENCE

SCRIPT = Path(__file__).parent / "scripts" / "sick.py"
LIMIT_S = 90.0
UNTIL = 16
pytestmark = pytest.mark.timeout(300)


def alone(folder: Path, environment: Mapping[str, str] | None = None, **plan: Any) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    arm(folder / "faults", [])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    arguments = [sys.executable, str(SCRIPT), str(folder), str(UNTIL), str(folder / "faults"), json.dumps(plan)]
    own = {**kept, **(environment or {}), "PYTHONPATH": str(SCRIPT.parents[3]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(arguments, env=own, capture_output=True, text=True, timeout=80 * PATIENCE, check=False)


def weights(folder: Path) -> list[Any]:
    (left,) = folder.glob("left-*")
    found: list[Any] = json.loads(left.read_text())
    return found


def steps(folder: Path, rank: int = 0) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / f"steps-{rank}.jsonl").read_text().splitlines()]


def train(
    folder: Path, plan: dict[str, Any], *, faults: tuple[Fault, ...] = (), spares: int = 1, store: Store | None = None
) -> Job:
    folder.mkdir(exist_ok=True)
    arm(folder / "faults", faults)
    job = Job("job", script_launch(SCRIPT, str(folder), str(UNTIL), str(folder / "faults"), json.dumps(plan)), 2, spares)

    async def through() -> None:
        plane = Plane(folder / "plane", 1, dict(os.environ), [store] if store else [])
        await plane.start()
        try:
            await plane.submit(job)
            await plane.finish(job, LIMIT_S)
        finally:
            await plane.stop()

    asyncio.run(through())
    return job


def digests(job: Job) -> set[str | None]:
    return {report.digest for report in job.finished.values()}


@pytest.mark.slow
def test_a_step_that_is_passed_over_changes_nothing_and_its_samples_are_not_seen_again(tmp_path: Path) -> None:
    done = alone(tmp_path, policy={"nan": "skip"}, sick=[5])
    assert done.returncode == 0, done.stderr
    assert all(math.isfinite(weight) for weight in weights(tmp_path)[0])
    assert steps(tmp_path) == [step for step in range(UNTIL) if step != 5]


@pytest.mark.slow
def test_without_a_policy_a_sick_loss_is_the_scripts_own_concern(tmp_path: Path) -> None:
    done = alone(tmp_path, sick=[5])
    assert done.returncode == 0, done.stderr
    assert not any(math.isfinite(weight) for weight in weights(tmp_path)[0])


def test_a_policy_that_stops_says_which_loss_it_was(tmp_path: Path) -> None:
    done = alone(tmp_path, policy={"nan": "stop"}, sick=[5])
    assert done.returncode != 0
    assert "LossStopped: The loss of step 5 is nan: training stops." in done.stderr


@pytest.mark.slow
def test_losses_that_stay_sick_stop_the_run_at_the_limit(tmp_path: Path) -> None:
    done = alone(tmp_path, policy={"nan": "skip", "limit": 2}, sick=[5, 6, 7])
    assert done.returncode != 0
    assert "after steps 5, 6 this is once too often (limit=2)" in done.stderr


@pytest.mark.slow
def test_a_run_goes_back_to_an_older_checkpoint_and_passes_the_step_over(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    environment = {"EVERSTEP_NAMESPACE": "ns", "EVERSTEP_DURABLE_URL": (tmp_path / "objects").as_uri()}
    plan = {"policy": {"nan": "rollback", "rollback_steps": 4}, "sick": [9], "saves": 2}
    done = alone(tmp_path / "notes", environment, **plan)
    assert done.returncode == 0, done.stderr
    trained = steps(tmp_path / "notes")
    first = trained[9]
    assert first <= 5
    assert trained == [*range(9), *range(first, 9), *range(10, UNTIL)]
    skipped = alone(tmp_path / "other", policy={"nan": "skip"}, sick=[9])
    assert skipped.returncode == 0, skipped.stderr
    assert weights(tmp_path / "notes") == weights(tmp_path / "other"), "the steps that are done again are the same ones"


@pytest.mark.parametrize("ddp", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_all_ranks_pass_the_same_step_over_and_go_on_alike(tmp_path: Path, ddp: bool) -> None:
    job = train(tmp_path, {"policy": {"nan": "skip"}, "sick": [5], "ddp": ddp}, spares=0)
    assert len(digests(job)) == 1
    assert job.losses[5] is None
    assert sorted(job.losses) == list(range(UNTIL))
    assert [len(set(steps(tmp_path, rank))) for rank in range(2)] == [UNTIL - 1] * 2
    (anomaly,) = [report for report in job.evidence if isinstance(report, AnomalyReport)]
    assert (anomaly.step, anomaly.what, anomaly.action) == (5, "not a number", "skip")


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "rank"), [("vote", 1), ("after-reduce", 0), ("forward", 1)])
def test_a_death_in_the_step_that_is_passed_over_leaves_no_rank_with_another_state(tmp_path: Path, phase: str, rank: int) -> None:
    whole = train(tmp_path / "whole", {"policy": {"nan": "skip"}, "sick": [5]}, spares=0)
    step = 6 if phase == "forward" else 5
    broken = train(tmp_path / "broken", {"policy": {"nan": "skip"}, "sick": [5]}, faults=(Fault(rank, phase, step=step),))
    assert len(broken.generations) > 1
    assert digests(broken) == digests(whole)


@pytest.mark.slow
def test_all_ranks_go_back_together_and_end_as_if_they_had_passed_the_step_over(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    store = Store("127.78.99.7", (tmp_path / "objects").as_uri())
    plan = {"policy": {"nan": "rollback", "rollback_steps": 3}, "sick": [9], "saves": 2}
    job = train(tmp_path / "back", plan, spares=0, store=store)
    skipped = train(tmp_path / "skipped", {"policy": {"nan": "skip"}, "sick": [9]}, spares=0)
    assert {report.source for report in job.reformed if report.generation > 1} == {Source.STORE}
    assert all(report.step <= 6 for report in job.reformed if report.generation > 1)
    assert digests(job) == digests(skipped)


@pytest.mark.slow
def test_a_policy_that_stops_fails_every_rank_with_the_words(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="The loss of step 5 is nan: training stops"):
        train(tmp_path, {"policy": {"nan": "stop"}, "sick": [5]}, spares=0)
