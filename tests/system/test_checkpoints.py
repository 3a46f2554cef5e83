"""Tiered checkpoints on a whole stack: tiers are switched, killed and starved under running jobs, and jobs come back from what they hold."""

import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from agent.processes import read_records
from everstep.embedded import procfs
from everstep.shards import PORT
from tests.system.stack import group, until

TIER = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}
EVERY = {"memory_every": 5, "durable_every": 20}
ONLY_MEMORY = {"memory_every": 5, "durable_every": 100_000}
STEPS = 80
PAUSE_S = 0.05


@pytest.fixture(scope="module")
def cluster(stack):
    """Three nodes with memory tiers; killed ones are replaced between tests."""
    name = "checkpoints"
    stack.create_cluster(name, group("workers", 3), TieredStorageConfig=TIER, NodeProvisioningMode="Continuous")
    yield name
    stack.delete_cluster(name)


@pytest.fixture(autouse=True)
def full(stack, cluster):
    until("the cluster is whole", lambda: len(stack.running(cluster)) == 3)
    until("its tiers are on", lambda: all(answers(stack, one) for one in stack.running(cluster)))


@pytest.fixture(scope="module")
def unbroken(stack, cluster):
    """The losses of a run which nothing disturbs, and which saves."""
    job = stack.await_job(submit(stack, cluster))
    assert (job["status"], job["generation"]) == ("Succeeded", 1), job
    return stack.losses(job["job_id"])


# ------------------------------------------------------------------------------------------------ what is looked at


def submit(stack, cluster, checkpoint=EVERY, steps=STEPS, **more):
    return stack.submit(cluster, replicas=2, steps=steps, pause_s=PAUSE_S, checkpoint=dict(checkpoint), **more)


def folder(instance):
    return Path("/dev/shm/everstep", instance)


def address(stack, instance):
    record = (stack.home.hosts / instance / "host.json").read_text()
    return record.partition('"address": "')[2].partition('"')[0]


def metrics(stack, instance):
    """What the node's memory tier counts, by name and labels."""
    text = httpx.get(f"http://{address(stack, instance)}:{PORT}/metrics").text
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def answers(stack, instance):
    try:
        return "everstep_tier_allocated_bytes" in metrics(stack, instance)
    except (httpx.TransportError, OSError):
        return False


def store_reads(stack, instances):
    return sum(value for one in instances for name, value in metrics(stack, one).items() if 'calls_total{kind="reads"}' in name)


def checkpoints(stack, job_id):
    """A job's saved steps, by number."""
    return {one["step"]: one for one in stack.rest.every(f"/v1/jobs/{job_id}/checkpoints", "checkpoints")}


def await_saved(stack, job_id, step, *, durable=False):
    """Until a step from ``step`` on is complete in memory with two copies of everything, or durable; returns its number."""

    def there():
        job = stack.job(job_id)
        assert job["status"] not in ("Failed", "Stopped"), job["why"]
        found = [number for number, one in checkpoints(stack, job_id).items() if number >= step and is_safe(one)]
        return max(found, default=None)

    def is_safe(one):
        return one["durable_at"] if durable else one["is_complete_in_memory"] and one["copies"] >= 2 * (one["world_size"] + 1)

    return until(f"a step from {step} on is saved", there)


def living(job):
    return [process for process in job["processes"] if process["pid"] and procfs.key_of(process["pid"])]


def kill_all(job):
    """Every process of the job at once, as a fault that nobody survives."""
    for process in living(job):
        os.kill(process["pid"], signal.SIGKILL)


def tier_pid(stack, instance):
    records = read_records(stack.home.hosts / instance / "state" / "memory_tier")
    return next(record.pid for record in records if record.process == "tier")


def causes(job):
    return [generation["cause"] for generation in job["generations"]]


# ------------------------------------------------------------------------------------------------ the tests


def test_what_a_job_saves_is_in_memory_twice_and_in_the_store_and_is_told(stack, cluster, unbroken):
    job_id = submit(stack, cluster)
    step = await_saved(stack, job_id, 20)
    told = stack.rest.get(f"/v1/jobs/{job_id}/checkpoints/{step}")
    assert [len({holder["instance_id"] for holder in shard["holders"]}) >= 2 for shard in told["shards"]] == [True] * 3
    job = stack.await_job(job_id)
    assert job["status"] == "Succeeded", job["why"]
    assert stack.losses(job_id) == unbroken, "saving has changed what is learnt"
    durable = until("the last step is durable", lambda: {n for n, one in checkpoints(stack, job_id).items() if one["durable_at"]})
    assert max(durable) >= STEPS - 20
    assert stack.job(job_id)["checkpoint"]["newest_durable"] == max(durable)
    until(
        "its memory is given back",
        lambda: all(not list(folder(one).glob(f"ns/{job_id}/*/*.json")) for one in stack.running(cluster)),
    )


def test_a_job_all_of_whose_processes_are_killed_goes_on_from_its_newest_checkpoint(stack, cluster, unbroken):
    job_id = submit(stack, cluster, ONLY_MEMORY)
    saved = await_saved(stack, job_id, 20)
    kill_all(stack.job(job_id))
    job = stack.await_job(job_id)
    assert job["status"] == "Succeeded", job["why"]
    assert stack.losses(job_id) == unbroken, "the run is not the same, bit for bit"
    assert any("step" in cause and "goes on" in cause for cause in causes(job)), causes(job)
    assert saved >= 20


def test_a_node_lost_with_every_process_is_made_up_for_by_its_peers_without_a_read_of_the_store(stack, cluster, unbroken):
    job_id = submit(stack, cluster, ONLY_MEMORY)
    await_saved(stack, job_id, 20)
    job = stack.job(job_id)
    lost = living(job)[0]["instance_id"]
    others = [one for one in stack.running(cluster) if one != lost]
    before = store_reads(stack, others)
    kill_all(job)
    stack.kill_node(lost)
    job = stack.await_job(job_id)
    assert job["status"] == "Succeeded", job["why"]
    assert stack.losses(job_id) == unbroken
    sources = {member["source"] for generation in job["generations"][1:] for member in generation["members"]}
    assert "store" not in sources, sources
    assert store_reads(stack, others) == before


@pytest.mark.slow
def test_a_copy_with_a_changed_byte_is_passed_over_for_the_other_one_and_told(stack, cluster, unbroken):
    """TC-7, R-16. Between its two saves the job has time enough for the fault to strike the newest one."""
    job_id = submit(stack, cluster, {"memory_every": 35, "durable_every": 100_000})
    step = await_saved(stack, job_id, 35)
    fault = stack.rest.post("/v1/faults", {"kind": "corrupt-shard", "target": f"{job_id}/{step}/0"})["fault_id"]
    faults = until(
        "it has struck", lambda: [one for one in stack.rest.every("/v1/faults", "faults", job_id=job_id) if one["struck_at"]]
    )
    assert [one["fault_id"] for one in faults] == [fault]
    kill_all(stack.job(job_id))
    job = stack.await_job(job_id)
    assert job["status"] == "Succeeded", job["why"]
    assert stack.losses(job_id) == unbroken, "what had changed has been learnt from"
    assert job["generation"] > 1


def test_agents_and_tiers_that_are_killed_during_saves_cost_a_job_nothing(stack, cluster, unbroken):
    job_id = submit(stack, cluster, steps=100_000)
    stack.await_step(job_id, 12)
    before = {process["process_id"]: process["pid"] for process in living(stack.job(job_id))}
    for instance in stack.running(cluster):
        os.kill(tier_pid(stack, instance), signal.SIGKILL)
        agent = stack.agent_of(instance)
        procfs.send([agent], signal.SIGKILL)
    stack.await_step(job_id, 30)
    assert before.items() <= {process["process_id"]: process["pid"] for process in living(stack.job(job_id))}.items()
    await_saved(stack, job_id, 35)
    job = stack.await_step(job_id, STEPS)
    assert (job["status"], job["generation"]) == ("Training", 1), job["why"]
    losses = stack.losses(job_id)
    assert {step: losses[step] for step in unbroken} == unbroken
    stack.rest.post(f"/v1/jobs/{job_id}/stop")
    stack.await_job(job_id)


def test_a_tier_is_switched_off_and_on_under_a_running_job_which_falls_to_the_store(stack, cluster, unbroken):
    """TC-11."""
    job_id = submit(stack, cluster)
    stack.await_step(job_id, 8)
    instances = stack.running(cluster)
    stack.sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig={"Mode": "Disable"})
    try:
        until("memory is given back", lambda: not any(folder(one).exists() for one in instances))
        off_at = stack.job(job_id)["step"]
        await_saved(stack, job_id, off_at, durable=True)
    finally:
        stack.sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig=TIER)
    job = stack.await_job(job_id)
    assert (job["status"], job["generation"]) == ("Succeeded", 1), job["why"]
    assert stack.losses(job_id) == unbroken
    until("the tiers are back", lambda: all(answers(stack, one) for one in instances))


def outage(stack, cluster, seconds, *, steps):
    """A job through an outage of the store; returns the job's id and the seconds that its steps took before and meanwhile."""
    job_id = submit(stack, cluster, {"memory_every": 5, "durable_every": 10}, steps=steps)
    await_saved(stack, job_id, 10, durable=True)
    began = stack.job(job_id)["step"]
    stack.rest.post("/v1/faults", {"kind": "bucket-outage", "target": "object-store", "seconds": seconds})
    until(
        "a tier says that the store is out",
        lambda: any(metrics(stack, one)["everstep_tier_store_is_out"] for one in stack.running(cluster)),
    )
    deadline = time.monotonic() + seconds
    has_waited = False
    while time.monotonic() < deadline - 1.0:
        told = [metrics(stack, one) for one in stack.running(cluster)]
        assert all(one["everstep_tier_backlog_bytes"] <= one["everstep_tier_allocated_bytes"] for one in told)
        has_waited |= any(one["everstep_tier_backlog_bytes"] > 0 for one in told)
        time.sleep(0.5)
    assert has_waited, "nothing waits: nothing was to be made durable"
    ended = stack.job(job_id)["step"]
    until("the store is back", lambda: not any(metrics(stack, one)["everstep_tier_store_is_out"] for one in stack.running(cluster)))
    return job_id, (0, began), (began, ended)


def check_drained(stack, cluster, job_id):
    """Everything that waited is durable, in order, and the outage is in the cluster's history."""
    job = stack.await_job(job_id, 600.0)
    assert job["status"] == "Succeeded", job["why"]
    until("nothing waits", lambda: not any(metrics(stack, one)["everstep_tier_backlog_bytes"] for one in stack.running(cluster)))
    durable = sorted((one["durable_at"], step) for step, one in checkpoints(stack, job_id).items() if one["durable_at"])
    assert [step for _, step in durable] == sorted(step for _, step in durable), "drained out of order"
    assert durable[-1][1] >= job["step"] - 10
    told = [event["Description"] for event in _events(stack, cluster)]
    assert any("object store" in text for text in told), told[:10]


def _events(stack, cluster):
    return stack.sagemaker.list_cluster_events(ClusterName=cluster, MaxResults=100)["Events"]


def test_an_outage_of_the_store_stops_no_training_and_is_made_up_for_in_order(stack, cluster):
    job_id, _, (began, ended) = outage(stack, cluster, 8.0, steps=260)
    assert ended > began + 20, "training did not go on"
    check_drained(stack, cluster, job_id)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_minutes_of_outage_under_load_change_no_step_s_time_by_a_twentieth(stack, cluster):
    """Against the slower of the times before it and after it: what else goes on on the machine is none of its doing."""
    job_id, before, meanwhile = outage(stack, cluster, 120.0, steps=2600)
    check_drained(stack, cluster, job_id)
    seconds = {one["number"]: one["seconds"] for one in stack.rest.every(f"/v1/jobs/{job_id}/steps", "steps")}

    def median(first, last):
        return statistics.median(took for number, took in seconds.items() if first + 5 <= number < last)

    undisturbed = (median(*before), median(meanwhile[1] + 50, max(seconds)))
    assert median(*meanwhile) <= max(undisturbed) * 1.05, (undisturbed, median(*meanwhile))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_smaller_tier_gives_up_the_oldest_steps_and_says_so(stack, cluster):
    """40 % of a node are 1.6 GiB, 20 % are 0.8 GiB."""
    stack.sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig={**TIER, "InstanceMemoryAllocationPercentage": 40})
    try:
        instance = stack.running(cluster)[0]
        before = until("it has grown", lambda: _allocated(stack, instance, above=1 << 30))
        url = f"http://{address(stack, instance)}:{PORT}/v1/cp/checkpoints/foreign"
        body = os.urandom(1 << 20) * 400
        for step in (1, 2, 3):
            assert httpx.post(f"{url}/0/{step}", content=body, timeout=60.0).status_code in (200, 201)
        stack.sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig=TIER)
        until("it has shrunk", lambda: _allocated(stack, instance, above=0) < before)
        with ThreadPoolExecutor(3) as pool:
            held = list(pool.map(lambda step: httpx.head(f"{url}/0/{step}?scope=local").status_code, (1, 2, 3)))
        assert (held[0], held[-1]) == (404, 200), "the oldest goes first, the newest stays"
        until("it says so", lambda: any("oldest" in event["Description"] for event in _events(stack, cluster)))
    finally:
        stack.sagemaker.update_cluster(ClusterName=cluster, TieredStorageConfig=TIER)


def _allocated(stack, instance, *, above):
    found = metrics(stack, instance)["everstep_tier_allocated_bytes"]
    return found if found > above else None
