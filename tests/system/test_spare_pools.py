"""A spare pool on a real stack: its node stands by with everything imported, takes a dead rank, and the pool is filled again."""

from pathlib import Path

from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE
from tests.system.stack import Stack, group, until


def zygotes(instance_id: str) -> set[procfs.ProcessKey]:
    found = procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == instance_id)
    return {key for key in found if is_zygote(key.pid) and not is_zygote(parent(key.pid))}


def is_zygote(pid: int) -> bool:
    try:
        return b"everstep.resilience.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_job_without_spares_is_made_whole_from_the_pool_by_a_process_forked_from_what_stood_ready(
    stack: Stack, cluster_name: str
):
    stack.create_cluster(cluster_name, group("workers", 3), NodeRecovery="Automatic", NodeProvisioningMode="Continuous")
    stack.rest.post("/v1/spare-pools", {"cluster": cluster_name, "nodes": 1})
    job_id = stack.submit(cluster_name, replicas=2, steps=1_000_000, pause_s=0.05)
    job = stack.await_step(job_id, 3)
    playing = {process["instance_id"]: process["pid"] for process in job["processes"]}
    [spare] = set(stack.running(cluster_name)) - playing.keys()
    held = until("the spare node stands by", lambda: zygotes(spare))
    waits = stack.submit(cluster_name, replicas=1)
    until("the other job is told why it waits", lambda: "1 more are kept as spares" in (stack.job(waits)["why"] or ""))

    struck, stays = sorted(playing)
    stack.rest.post("/v1/faults", {"kind": "kill-node", "target": struck})

    def taken_over() -> dict | None:
        now = {one["instance_id"]: one["pid"] for one in stack.job(job_id)["processes"] if one["status"] == "Ready"}
        return now if now.keys() == {stays, spare} else None

    now = until("the spare node has the rank", taken_over, 60)
    stack.await_step(job_id, stack.job(job_id)["step"] + 3)
    assert now[stays] == playing[stays]
    assert parent(now[spare]) in {key.pid for key in held}
    until(
        "the pool is filled again",
        lambda: stack.rest.get("/v1/spare-pools", cluster=cluster_name)["pools"][0]["free_nodes"] == 1,
        60,
    )
    assert stack.job(waits)["status"] == "Queued"
    stack.rest.post("/v1/spare-pools", {"cluster": cluster_name, "nodes": 0})
    assert stack.await_job(waits)["status"] == "Succeeded"
