"""Notices on a whole stack (R-15, SP-1, SP-5), and ends without one (R-14, SP-2): what is saved, who takes over, and what it costs."""

import time
from datetime import datetime

import pytest

from tests.system.stack import group, until

TIER = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
NEVER = {"memory_every": 100_000, "durable_every": 100_000}
"""Nothing but a notice has anything saved."""
NODES = 5


@pytest.fixture(scope="module")
def cluster(stack):
    name = "leaving"
    stack.create_cluster(name, group("workers", NODES), TieredStorageConfig=TIER, NodeProvisioningMode="Continuous")
    yield name
    stack.delete_cluster(name)


@pytest.fixture
def job_id(stack, cluster):
    """Four ranks and a spare, on nodes none of which is to be left."""
    until("the cluster is whole", lambda: len(stack.running(cluster)) == NODES, 120)
    job_id = stack.submit(cluster, replicas=4, spares=1, steps=1_000_000, pause_s=0.05, checkpoint=NEVER, max_restarts=100)
    until("a fifth step", lambda: stack.job(job_id)["step"] >= 5, 150)
    yield job_id
    stack.rest.post(f"/v1/jobs/{job_id}/stop")
    stack.await_job(job_id)


def members(job):
    return sorted((process for process in job["processes"] if process["rank"] is not None), key=lambda one: one["rank"])


def notice(stack, instance, seconds):
    return stack.rest.post("/v1/faults", {"kind": "spot-notice", "target": instance, "seconds": seconds})["fault_id"]


def durable(stack, job_id):
    """Steps that are in the object store."""
    found = stack.rest.get(f"/v1/jobs/{job_id}/checkpoints")["checkpoints"]
    return [one["step"] for one in found if one.get("durable_at")]


def events(stack, job_id):
    return [(one["name"], one["description"]) for one in stack.rest.every(f"/v1/jobs/{job_id}/events", "events")]


def gap(job):
    """Seconds between the decision and the next step of its newest generation that has taken one."""
    found = [one for one in job["generations"] if one.get("first_step_at")][-1]
    return (datetime.fromisoformat(found["first_step_at"]) - datetime.fromisoformat(found["decided_at"])).total_seconds()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("seconds", "ranks"),
    [
        pytest.param(25, (1,), id="one node"),
        pytest.param(5, (2,), id="a short notice", marks=pytest.mark.slow),
        pytest.param(30, (0, 3), id="two at once", marks=pytest.mark.slow),
    ],
)
def test_a_notice_is_saved_and_its_ranks_are_handed_over_before_the_deadline(stack, cluster, job_id, seconds, ranks):
    before = members(stack.job(job_id))
    targets = {before[rank]["instance_id"] for rank in ranks}
    step = stack.job(job_id)["step"]
    deadline = time.time() + seconds
    faults = [notice(stack, target, seconds) for target in targets]
    until("a durable step", lambda: any(one >= step for one in durable(stack, job_id)), seconds)
    saved_in = time.time() - (deadline - seconds)

    def are_elsewhere():
        playing = {one["instance_id"] for one in members(stack.job(job_id))}
        return len(playing) == 4 and not playing & targets

    until("its ranks are played elsewhere", are_elsewhere, 60 if len(ranks) > 1 else seconds)
    job = stack.await_step(job_id, stack.job(job_id)["step"] + 5, 60)
    kept = {one["process_id"]: one["pid"] for one in before if one["instance_id"] not in targets}
    assert kept.items() <= {one["process_id"]: one["pid"] for one in members(job)}.items(), "a healthy rank was restarted"
    print(f"durable {saved_in:.1f} s after the notice, gap {gap(job):.2f} s, lost {job['steps_lost']}")
    assert job["steps_lost"] == 0
    assert job["generations"][1]["cause"].startswith("A node leaves")
    for fault in faults:
        stack.rest.delete(f"/v1/faults/{fault}")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_hard_stop_without_notice_is_seen_by_itself_and_costs_no_step(stack, cluster, job_id):
    before = members(stack.job(job_id))
    victim = before[2]["instance_id"]
    killed_at = time.time()
    stack.kill_node(victim)
    job = until("a second generation", lambda: (job := stack.job(job_id))["generation"] >= 2 and job, 30)
    decided_at = datetime.fromisoformat(job["generations"][1]["decided_at"]).timestamp()
    assert decided_at - killed_at < 30
    job = stack.await_step(job_id, job["step"] + 5)
    assert job["steps_lost"] == 0
    told = events(stack, job_id)
    assert any(name == "job recovering" and "rank 2" in description for name, description in told), told
    lost = stack.sagemaker.list_cluster_events(ClusterName=cluster, NodeId=victim, MaxResults=100)["Events"]
    until(
        "the node's loss", lambda: any("lost" in event["Description"] for event in lost) or not _is_running(stack, cluster, victim)
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_has_not_left_at_the_deadline_is_cut_and_said_to_be(stack, cluster):
    until("the cluster is whole", lambda: len(stack.running(cluster)) == NODES, 120)
    stubborn = stack.submit(cluster, replicas=1, spares=0, command=["sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"])
    process = until("a process", lambda: [one for one in stack.job(stubborn)["processes"] if one["pid"]])[0]
    fault = notice(stack, process["instance_id"], 4)
    until("a cut", lambda: any(name == "process cut" for name, _ in events(stack, stubborn)), 40)
    stack.rest.delete(f"/v1/faults/{fault}")
    stack.rest.post(f"/v1/jobs/{stubborn}/stop")
    stack.await_job(stubborn)


def _is_running(stack, cluster, instance):
    return instance in stack.running(cluster)
