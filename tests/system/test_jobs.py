"""Training jobs on a whole stack: nodes, agents, ranks and parts of the control plane are killed; the job goes on."""

import os
import signal
import time
from datetime import datetime

import pytest

from everstep.embedded import procfs
from tests.system.stack import group, until


@pytest.fixture(scope="module")
def cluster(stack):
    """Three members and two spares, shared by the jobs of this module; killed nodes are replaced between tests."""
    name = "jobs"
    stack.create_cluster(name, group("workers", 5))
    yield name
    stack.delete_cluster(name)


@pytest.fixture(autouse=True)
def full(stack, cluster):
    until("the cluster is whole", lambda: len(stack.running(cluster)) == 5)


@pytest.fixture(scope="module")
def unbroken(stack, cluster):
    """The losses of a run which nothing disturbs."""
    job = stack.await_job(stack.submit(cluster, replicas=3, steps=40))
    assert job["status"] == "Succeeded", job
    assert job["generation"] == 1
    return stack.losses(job["job_id"])


def members(job):
    return [process for process in job["processes"] if process["rank"] is not None]


def is_alive(process):
    return procfs.key_of(process["pid"]) is not None


def check_as_unbroken(stack, job, unbroken):
    assert job["status"] == "Succeeded", job
    assert stack.losses(job["job_id"]) == unbroken
    assert job["steps_lost"] == 0


def test_a_killed_node_costs_no_step_and_survivors_keep_their_processes(stack, cluster, unbroken):
    job_id = stack.submit(cluster, replicas=3, steps=40, spares=1)
    before = members(stack.await_step(job_id, 10))
    stack.rest.post("/v1/faults", {"kind": "kill-node", "target": before[1]["instance_id"]})
    after = stack.await_step(job_id, 20)
    survivors = [process for process in before if process["instance_id"] != before[1]["instance_id"]]
    assert {p["process_id"]: p["pid"] for p in survivors}.items() <= {p["process_id"]: p["pid"] for p in members(after)}.items()
    job = stack.await_job(job_id)
    check_as_unbroken(stack, job, unbroken)
    sources = {member["source"] for member in job["generations"][1]["members"]}
    assert sources <= {"kept", "rolled-forward", "peer"}
    assert "peer" in sources


def test_a_node_that_dies_while_everybody_computes_is_missed_before_the_step_ends(stack, cluster):
    step_s = 6.0
    job_id = stack.submit(cluster, replicas=3, steps=4, spares=1, pause_s=step_s)
    victim = members(stack.await_step(job_id, 1))[2]
    killed_at = time.time()
    stack.kill_node(victim["instance_id"])
    job = until("a second generation", lambda: (job := stack.job(job_id))["generation"] == 2 and job)
    decided_at = datetime.fromisoformat(job["generations"][1]["decided_at"]).timestamp()
    assert decided_at - killed_at < step_s
    assert stack.await_job(job_id)["status"] == "Succeeded"


def test_a_killed_rank_on_a_healthy_node_is_replaced_from_the_spare(stack, cluster, unbroken):
    job_id = stack.submit(cluster, replicas=3, steps=40, spares=1)
    victim = members(stack.await_step(job_id, 10))[2]
    fault = stack.rest.post("/v1/faults", {"kind": "kill-rank", "target": f"{job_id}/{victim['rank']}"})
    check_as_unbroken(stack, stack.await_job(job_id), unbroken)
    assert [(one["fault_id"], one["status"]) for one in stack.rest.get("/v1/faults", job_id=job_id)["faults"]] == [
        (fault["fault_id"], "Struck")
    ]
    assert victim["instance_id"] in stack.running(cluster), "a process fault costs no node"


@pytest.mark.slow
def test_a_rank_that_hangs_for_a_while_costs_the_while_and_nothing_else(stack, cluster, unbroken):
    job_id = stack.submit(cluster, replicas=3, steps=40)
    victim = members(stack.await_step(job_id, 10))[2]
    target = f"{job_id}/{victim['rank']}"
    fault = stack.rest.post("/v1/faults", {"kind": "hang-rank", "target": target, "seconds": 3})["fault_id"]
    until("a hung rank", lambda: stack.rest.get("/v1/faults", job_id=job_id)["faults"][0]["status"] == "Holding")
    stands_at = stack.job(job_id)["step"]
    until("its end", lambda: stack.rest.get("/v1/faults", job_id=job_id)["faults"][0]["status"] == "Ended")
    job = stack.await_job(job_id)
    check_as_unbroken(stack, job, unbroken)
    assert (job["generation"], stands_at < 40) == (1, True)
    assert stack.rest.delete(f"/v1/faults/{fault}")["status"] == "Ended"


def test_a_job_without_spares_recovers_on_a_new_process(stack, cluster, unbroken):
    job_id = stack.submit(cluster, replicas=3, steps=40, spares=0)
    os.kill(members(stack.await_step(job_id, 10))[0]["pid"], signal.SIGKILL)
    check_as_unbroken(stack, stack.await_job(job_id), unbroken)


def test_an_agent_that_is_killed_alone_finds_its_rank_still_running(stack, cluster, unbroken):
    job_id = stack.submit(cluster, replicas=3, steps=40)
    victim = members(stack.await_step(job_id, 10))[1]
    agent = stack.agent_of(victim["instance_id"])
    procfs.send([agent], signal.SIGKILL)
    until("another agent", lambda: stack.agent_of(victim["instance_id"]) not in {None, agent}, 20)
    job = stack.await_job(job_id)
    check_as_unbroken(stack, job, unbroken)
    assert job["generation"] == 1, "one witness is not enough to disturb a healthy job"


@pytest.mark.timeout(240)
def test_no_killed_part_of_the_control_plane_disturbs_a_job(stack, cluster, unbroken):
    job_id = stack.submit(cluster, replicas=3, steps=40, pause_s=1.0)
    for service in ("api", "worker-fast", "worker-slow", "beat", "relay", "valkey", "postgres"):
        stack.await_ready()
        before = stack.job(job_id)["step"]
        stack.kill_service(service)
        until(f"steps after the end of {service}", lambda before=before: stack.job(job_id)["step"] > before)
    stack.await_ready()
    job = stack.await_job(job_id)
    check_as_unbroken(stack, job, unbroken)
    assert job["generation"] == 1


def test_user_code_that_raises_fails_the_job_with_its_traceback(stack, cluster):
    job_id = stack.submit(cluster, replicas=1, steps="not-a-number", max_restarts=1)
    job = stack.await_job(job_id)
    assert job["status"] == "Failed"
    assert "ValueError" in job["why"]


def test_a_stopped_job_frees_its_nodes(stack, cluster):
    job_id = stack.submit(cluster, replicas=2, steps=100_000)
    running = members(stack.await_step(job_id, 3))
    stack.rest.post(f"/v1/jobs/{job_id}/stop")
    assert stack.await_job(job_id)["status"] == "Stopped"
    until("processes ended", lambda: not any(is_alive(process) for process in running), 20)


def test_a_job_that_wants_more_nodes_than_there_are_says_what_it_waits_for(stack, cluster):
    job_id = stack.submit(cluster, replicas=6)
    until("a reason", lambda: stack.job(job_id)["why"])
    assert stack.job(job_id)["status"] == "Queued"
    assert "6" in stack.job(job_id)["why"]
    stack.rest.post(f"/v1/jobs/{job_id}/stop")
    assert stack.await_job(job_id)["status"] == "Stopped"
