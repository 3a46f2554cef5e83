"""Scripts of torchrun's on a whole stack: real agents, real processes, nothing of Everstep in the script."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.system.stack import group, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_ddp.py"
SLOWED = ("for step in range(first, STEPS):", "for step in range(first, STEPS):\n        __import__('time').sleep(0.05)")
TOLD = (
    "        optimizer.zero_grad()\n",
    "        optimizer.zero_grad()\n        __import__('everstep').report_step(step, loss.item())\n",
)
CRASHES = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("the data has no column 'text'")
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(stack):
    name = "plain"
    stack.create_cluster(name, group("workers", 2))
    yield name
    stack.delete_cluster(name)


def submit(stack, cluster: str, folder: Path, *arguments: str, **more) -> str:
    settings = {"env": {"GLOO_SOCKET_IFNAME": "lo"}, "recovery": "process", "working_dir": str(folder), **more}
    return stack.submit(cluster, replicas=2, command=["python", "script.py", *arguments], **settings)


def members(job: dict) -> list[dict]:
    """Those that run, by rank."""
    ready = [process for process in job["processes"] if process["rank"] is not None and process["status"] == "Ready"]
    return sorted(ready, key=lambda process: process["rank"])


def test_a_script_of_torchrun_survives_a_kill_from_its_own_checkpoint(stack, cluster, tmp_path):
    (tmp_path / "script.py").write_text(EXAMPLE.read_text().replace(*SLOWED))
    job_id = submit(stack, cluster, tmp_path, str(tmp_path), processes_per_node=2)
    until("a checkpoint", (tmp_path / "checkpoint.pt").exists, 120)
    before = members(stack.job(job_id))
    assert len(before) == 4
    os.kill(before[3]["pid"], signal.SIGKILL)
    job = stack.await_job(job_id, 180)
    assert job["status"] == "Succeeded", job
    assert (job["generation"], job["restarts"]) == (2, 0)
    assert "rank 3 (killed by signal 9)" in job["generations"][1]["cause"]
    assert job["step"] == 0, "nobody has told its steps"
    first = {process["process_id"] for process in before}
    assert not first & {member["process_id"] for member in job["generations"][1]["members"]}

    def done() -> list[str]:
        logs = stack.rest.get(f"/v1/jobs/{job_id}/logs")["processes"]
        return [line for log in logs for line in log["text"].splitlines() if line.startswith("step ")]

    until("the last words, which lag behind the job", lambda: any(line.startswith("step 60 of 60, 4 ranks") for line in done()))
    assert sum(line.startswith("step 60 of 60, 4 ranks") for line in done()) == 1
    assert sum(line.startswith("step 10 of 60") for line in done()) == 1, "what was saved is not done again"


def test_steps_that_a_script_tells_are_shown_with_what_was_done_again(stack, cluster, tmp_path):
    (tmp_path / "script.py").write_text(EXAMPLE.read_text().replace(*SLOWED).replace(*TOLD))
    job_id = submit(stack, cluster, tmp_path, str(tmp_path))
    job = stack.await_step(job_id, 15, 120)
    os.kill(members(job)[1]["pid"], signal.SIGKILL)
    job = stack.await_job(job_id, 180)
    assert job["status"] == "Succeeded", job
    assert job["step"] == 60
    assert job["loss_last"] is not None
    steps = stack.rest.every(f"/v1/jobs/{job_id}/steps", "steps")
    reached = 1 + max(step["number"] for step in steps if step["generation"] == 1)
    again = job["generations"][1]["step"]
    assert again % 10 == 0
    assert job["steps_lost"] == reached - again
    assert sorted(stack.losses(job_id)) == list(range(60))


def test_a_crash_loop_fails_with_the_traceback_of_the_first_failing_rank(stack, cluster, tmp_path):
    (tmp_path / "script.py").write_text(CRASHES)
    job = stack.await_job(submit(stack, cluster, tmp_path, max_restarts=1), 120)
    assert (job["status"], job["generation"], job["restarts"]) == ("Failed", 2, 2)
    assert "Rank 1 of generation 2 failed first" in job["failure"]
    assert "ValueError: the data has no column 'text'" in job["failure"]
    shutil.rmtree(tmp_path)


@pytest.mark.slow
def test_a_script_that_loses_a_node_goes_on_smaller_and_the_loss_is_not_its_fault(stack, cluster, tmp_path):
    longer = ("STEPS, EVERY, BATCH = 60,", "STEPS, EVERY, BATCH = 300,")
    (tmp_path / "script.py").write_text(EXAMPLE.read_text().replace(*SLOWED).replace(*longer))
    policy = {"min": 1, "max": 2, "faulty_scale_down_timeout": "1s"}
    job_id = submit(stack, cluster, tmp_path, str(tmp_path), elastic=policy)
    until("a checkpoint", (tmp_path / "checkpoint.pt").exists, 120)
    stack.kill_node(members(stack.job(job_id))[1]["instance_id"])
    job = stack.await_job(job_id, 240)
    assert (job["status"], job["restarts"]) == ("Succeeded", 0), job
    assert [generation["world_size"] for generation in job["generations"]][:2] == [2, 1]
    logs = stack.rest.get(f"/v1/jobs/{job_id}/logs")["processes"]
    done = [line for log in logs for line in log["text"].splitlines() if line.startswith("step ")]
    assert any(", 1 ranks" in line for line in done), done
    assert sum(line.startswith("step 300 of 300") for line in done) == 1
