"""An elastic job on a whole stack: it changes its size on command and after a loss, and its processes go on."""

import os
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.system.stack import SCRIPT, group, until

pytestmark = pytest.mark.slow
GLOBAL_BATCH, STEPS = 12, 400


@pytest.fixture(scope="module")
def cluster(stack):
    stack.create_cluster("elastic", group("workers", 4))
    yield "elastic"
    stack.delete_cluster("elastic")


def members(job: dict) -> dict[str, int]:
    return {process["process_id"]: process["pid"] for process in job["processes"] if process["rank"] is not None}


def of_size(stack, job_id: str, size: int) -> dict:
    def there() -> dict | None:
        job = stack.job(job_id)
        return job if (job["status"], job["world_size"]) == ("Training", size) else None

    return until(f"{size} ranks", there, 90)


def trained_on(records: Path) -> dict[int, list[int]]:
    """By step, the samples that ranks have written down."""
    found = defaultdict(list)
    for file in records.iterdir():
        for line in file.read_text().splitlines():
            step, *samples = map(int, line.split())
            found[step] += samples
    return found


@pytest.mark.timeout(400)
def test_a_job_goes_from_two_nodes_to_four_to_three_to_two_and_sees_every_sample_once(stack, cluster, tmp_path):
    job_id = stack.submit(
        cluster,
        replicas=2,
        steps=STEPS,
        command=[sys.executable, str(SCRIPT.parent / "elastic_job.py"), str(STEPS), "0.1"],
        env={"RECORDS": str(tmp_path)},
        elastic={"min": 1, "max": 4, "scaling_timeout": 1, "faulty_scale_down_timeout": "2s"},
    )
    two = members(stack.await_step(job_id, 5))
    stack.rest.post(f"/v1/jobs/{job_id}/resize", {"replicas": 4})
    four = of_size(stack, job_id, 4)
    assert two.items() <= members(four).items(), "survivors keep their processes"
    stack.rest.post(f"/v1/jobs/{job_id}/resize", {"replicas": 3})
    three = of_size(stack, job_id, 3)
    assert members(three).items() <= members(four).items()
    victim = next(process for process in three["processes"] if process["rank"] == 2)
    os.kill(victim["pid"], signal.SIGKILL)
    stack.rest.post(f"/v1/jobs/{job_id}/resize", {"replicas": 2})
    last = of_size(stack, job_id, 2)
    assert members(last).items() <= members(three).items()
    job = stack.await_job(job_id, 200)
    assert (job["status"], job["restarts"], job["steps_lost"]) == ("Succeeded", 0, 0), job["why"]
    assert job["resizes"] >= 3
    for step, samples in trained_on(tmp_path).items():
        assert len(samples) == len(set(samples)) <= GLOBAL_BATCH, f"step {step} saw a sample twice"
    whole = [step for step, samples in trained_on(tmp_path).items() if len(samples) == GLOBAL_BATCH]
    assert len(whole) >= STEPS - 1, "only the step in which a rank was killed may be short of what that rank would have written"
