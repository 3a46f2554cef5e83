"""Every fault of a node or a rank, struck at an idle node and at one with work: what follows, how soon, what is told, and whom it leaves alone.

The bounds of time are bounds of correctness on a busy machine; ``benchmarks/reactions.py`` has the figures. ``docs/faults.md`` has the same table.
Faults of checkpoints and of the object store are in ``test_checkpoints.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from everstep.embedded import procfs
from everstep.protocol import NODE_ID_VARIABLE
from tests.system.stack import ENDED, Stack, group, until

NODES = 4
HEALTH = "sagemaker.amazonaws.com/node-health-status"
TAINT = (HEALTH, "NoSchedule")
CLUSTER = "matrix"
SOON_S = 20.0
"""For what takes less than a second or two on a quiet machine."""


@pytest.fixture(scope="module")
def cluster(stack: Stack):
    stack.create_cluster(CLUSTER, group("workers", NODES), NodeRecovery="Automatic", NodeProvisioningMode="Continuous")
    yield CLUSTER
    stack.delete_cluster(CLUSTER)


@pytest.fixture(scope="module")
def job_id(stack: Stack, cluster: str):
    """Two ranks that train as long as these tests take."""
    job_id = stack.submit(cluster, replicas=2, steps=1_000_000, pause_s=0.05, max_restarts=1000)
    stack.await_step(job_id, 3)
    yield job_id
    stack.rest.post(f"/v1/jobs/{job_id}/stop")
    stack.await_job(job_id)


@dataclass
class World:
    """The stack, and what it was like when a fault was to strike ``target``."""

    stack: Stack
    job_id: str
    target: str = ""
    logical_id: str = ""
    before: list[dict[str, Any]] = field(default_factory=list)
    generation: int = 0
    fault_id: str = ""

    def aim(self, *, has_job: bool) -> None:
        """Waits until everything is well, and chooses a node."""
        until("the cluster is whole and free", self._is_whole, 90)
        job = self.stack.job(self.job_id)
        self.before = members(job)
        self.generation = job["generation"]
        busy = {process["instance_id"] for process in job["processes"] if process["status"] not in ("Exited", "Lost")}
        idle = [one for one in self.stack.running(CLUSTER) if one not in busy]
        self.target = self.before[-1]["instance_id"] if has_job else idle[0]
        self.logical_id = self.health(self.target)["node_logical_id"]

    def strike(self, kind: str, *, target: str | None = None, **more: Any) -> None:
        asked = {"kind": kind, "target": target or self.target, **more}
        self.fault_id = self.stack.rest.post("/v1/faults", asked)["fault_id"]

    def fault(self) -> dict[str, Any]:
        return next(one for one in self.stack.rest.every("/v1/faults", "faults") if one["fault_id"] == self.fault_id)

    def health(self, node: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self.stack.rest.get(f"/v1/clusters/{CLUSTER}/nodes/{node or self.logical_id}/health")
        return found

    def conditions(self) -> list[dict[str, Any]]:
        """Of the place that was struck, newest first: its host's, and those of the hosts before it."""
        found = self.stack.rest.every(f"/v1/clusters/{CLUSTER}/node-conditions", "conditions")
        return [one for one in found if one["node_logical_id"] == self.logical_id]

    def events(self) -> list[str]:
        """What the cluster's history says of the node that was struck, newest first."""
        told = self.stack.sagemaker.list_cluster_events(ClusterName=CLUSTER, NodeId=self.target, MaxResults=100)["Events"]
        return [event["Description"] for event in told]

    # ------------------------------------------------------------ what may follow

    def check_healthy_ranks_kept(self) -> None:
        """Those on other nodes are the very processes that they were."""
        kept = {process["process_id"]: process["pid"] for process in self.before if process["instance_id"] != self.target}
        now = {process["process_id"]: process["pid"] for process in members(self.stack.job(self.job_id))}
        assert kept.items() <= now.items(), "a healthy rank was restarted"

    def check_undisturbed(self) -> None:
        """The same processes in the same generation, and they go on; the node is still there and takes work."""
        job = self.stack.await_step(self.job_id, self.stack.job(self.job_id)["step"] + 2)
        assert [(one["process_id"], one["pid"]) for one in members(job)] == [(one["process_id"], one["pid"]) for one in self.before]
        assert job["generation"] == self.generation
        until("the node runs", lambda: self.target in self.stack.running(CLUSTER), SOON_S)
        assert self.health()["instance_id"] == self.target

    def await_handed_over(self) -> None:
        """Its rank is played elsewhere, in a later generation, and the job goes on."""

        def is_elsewhere() -> bool:
            job = self.stack.job(self.job_id)
            playing = members(job)
            nodes = {one["instance_id"] for one in playing}
            return job["generation"] > self.generation and len(playing) == len(self.before) and self.target not in nodes

        until("its rank is played elsewhere", is_elsewhere, 100)
        self.stack.await_step(self.job_id, self.stack.job(self.job_id)["step"] + 2)
        self.check_healthy_ranks_kept()

    def await_replaced(self) -> None:
        """Another host at the same place; the old one is gone, with all its processes."""
        until("another host at its place", lambda: self.health()["instance_id"] not in (None, self.target), 60)
        other = self.health()["instance_id"]
        until("it runs", lambda: other in self.stack.running(CLUSTER), 60)
        until("the old one is gone", lambda: self.target not in self.stack.hosts(), 60)

    def _is_whole(self) -> bool:
        job = self.stack.job(self.job_id)
        assert job["status"] not in ENDED, job["why"]
        fit = [one for one in self.stack.running(CLUSTER) if self.health(one)["schedulability"] == "Schedulable"]
        return len(fit) == NODES and job["status"] == "Training" and len(members(job)) == 2


def members(job: dict[str, Any]) -> list[dict[str, Any]]:
    playing = [process for process in job["processes"] if process["rank"] is not None and process["status"] == "Ready"]
    return sorted(playing, key=lambda process: process["rank"])


def processes(instance_id: str) -> set[procfs.ProcessKey]:
    return set(procfs.find(lambda environ: environ.get(NODE_ID_VARIABLE) == instance_id))


def taints(health: dict[str, Any]) -> list[tuple[str, str]]:
    return [(taint["key"], taint["effect"]) for taint in health["taints"]]


# ------------------------------------------------------------------ the faults


def an_xid_that_replaces(world: World, *, has_job: bool) -> None:
    """CP-8. Label, taint, condition and event are there at once; the work leaves, and another host takes the place."""
    world.strike("xid", code=74, device=1)
    marked = until(
        "the label", lambda: (found := world.health(world.target))["labels"].get(HEALTH) != "Schedulable" and found, SOON_S
    )
    assert marked["labels"][HEALTH] == "UnschedulablePendingReplacement"
    assert TAINT in taints(marked)
    assert [(one["code"], one["fault_class"]) for one in marked["conditions"]][:1] == [("xid:74", "replace")]
    assert "Xid" in marked["fault_details"][0]["message"]
    if has_job:
        world.await_handed_over()
    world.await_replaced()
    assert world.conditions()[0]["status"] == "Resolved"
    assert any("xid:74" in text or "Xid" in text for text in world.events())


def an_xid_that_reboots(world: World, *, has_job: bool) -> None:
    """CP-9. The same host, started anew."""
    ran = processes(world.target)
    world.strike("xid", code=73)
    until("the label", lambda: world.health(world.target)["labels"].get(HEALTH) == "UnschedulablePendingReboot", SOON_S)
    if has_job:
        world.await_handed_over()
    until("every process is another one", lambda: (now := processes(world.target)) and not ran & now, 60)
    until("it runs again", lambda: world.target in world.stack.running(CLUSTER), 60)
    until("it takes work again", lambda: world.health()["schedulability"] == "Schedulable", SOON_S)
    assert world.health()["instance_id"] == world.target


def an_xid_of_the_program(world: World, *, has_job: bool) -> None:
    """CP-10. It is noted, and costs nobody anything."""
    world.strike("xid", code=31)
    until("it is noted", lambda: any(one["code"] == "xid:31" for one in world.conditions()), SOON_S)
    world.check_undisturbed()
    assert world.health()["schedulability"] == "Schedulable"
    assert TAINT not in taints(world.health())


def a_notice_that_is_withdrawn(world: World, *, has_job: bool) -> None:
    """Taint and reason are there at once, the rank leaves before the deadline, and the node is free again when the notice is taken back.

    Asked for by its own id: its place is another host's as soon as the notice stands, and its own again afterwards.
    """
    world.strike("spot-notice", seconds=300)
    told = until("it is to be left", lambda: (found := world.health(world.target))["leave_why"] and found, SOON_S)
    assert TAINT in taints(told)
    assert told["leave_by"]
    if has_job:
        world.await_handed_over()
    world.stack.rest.delete(f"/v1/faults/{world.fault_id}")
    until("it need not be left", lambda: world.health(world.target)["leave_why"] is None, SOON_S)
    until("it is free", lambda: TAINT not in taints(world.health(world.target)), SOON_S)
    until("it has its place again", lambda: world.health()["instance_id"] == world.target, SOON_S)


def a_host_that_is_taken_back(world: World, *, has_job: bool) -> None:
    """SP-2. Its provider knows it no longer."""
    world.strike("spot-reclaim")
    if has_job:
        world.await_handed_over()
    world.await_replaced()
    words = "The node is lost" if has_job else "the provider knows no such instance"  # peers may be quicker than the provider
    assert any(words in text for text in world.events()), world.events()


def a_node_that_dies(world: World, *, has_job: bool) -> None:
    """Its provider, or its peers, confirm the loss."""
    world.strike("kill-node")
    if has_job:
        world.await_handed_over()
    world.await_replaced()


def a_partition(world: World, *, has_job: bool) -> None:
    """Its agent is not heard: it is suspected, and nothing is done about it."""
    ran = processes(world.target)
    world.strike("partition", target=f"{world.job_id}/1" if has_job else None, seconds=8)
    until("it is suspected", lambda: world.target not in world.stack.running(CLUSTER) or _is_suspected(world), SOON_S)
    until("it is over", lambda: world.fault()["status"] == "Ended", 40)
    world.check_undisturbed()
    assert ran <= processes(world.target)


def a_slow_node(world: World, *, has_job: bool) -> None:
    """The job is as slow as its slowest rank, and that is all."""
    world.strike("slow-node", seconds=2)
    until("it holds", lambda: world.fault()["status"] in ("Holding", "Ended"), SOON_S)
    until("it is over", lambda: world.fault()["status"] == "Ended", SOON_S)
    world.check_undisturbed()


def a_rank_that_dies(world: World, *, has_job: bool) -> None:
    """Another process plays it; its node stays."""
    assert has_job
    world.strike("kill-rank", target=f"{world.job_id}/1")
    job = until("a later generation", lambda: (job := world.stack.job(world.job_id))["generation"] > world.generation and job)
    world.stack.await_step(world.job_id, job["step"] + 2)
    world.check_healthy_ranks_kept()
    assert world.target in world.stack.running(CLUSTER)


def a_rank_that_hangs(world: World, *, has_job: bool) -> None:
    assert has_job
    world.strike("hang-rank", target=f"{world.job_id}/1", seconds=2)
    until("it is over", lambda: world.fault()["status"] == "Ended", SOON_S)
    world.check_undisturbed()


def _is_suspected(world: World) -> bool:
    return any("stream has closed" in text or "silent" in text for text in world.events())


Fault = Callable[..., None]
ANYWHERE: tuple[Fault, ...] = (
    a_slow_node,
    an_xid_of_the_program,
    a_notice_that_is_withdrawn,
    a_partition,
    an_xid_that_reboots,
    an_xid_that_replaces,
    a_host_that_is_taken_back,
    a_node_that_dies,
)
ALWAYS = {
    (a_slow_node, True),
    (an_xid_of_the_program, True),
    (a_notice_that_is_withdrawn, False),
    (an_xid_that_replaces, True),
    (a_host_that_is_taken_back, False),
}
"""In the default suite; the others take as long again."""
MATRIX = [(fault, has_job) for fault in ANYWHERE for has_job in (False, True)] + [
    (a_rank_that_dies, True),
    (a_rank_that_hangs, True),
]


def _case(fault: Fault, has_job: bool) -> Any:
    name = f"{fault.__name__}-{'with_job' if has_job else 'idle'}"
    return pytest.param(fault, has_job, id=name, marks=() if (fault, has_job) in ALWAYS else pytest.mark.slow)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault, has_job", [_case(*case) for case in MATRIX])
def test_a_fault_has_the_consequence_that_is_documented_and_restarts_no_healthy_rank(stack, cluster, job_id, fault, has_job):
    world = World(stack, job_id)
    world.aim(has_job=has_job)
    fault(world, has_job=has_job)
    world.check_healthy_ranks_kept()


def _cut_off(stack: Stack, job_id: str, seconds: float) -> None:
    """All agents of the cluster are cut off: no beat comes, and everything that runs goes on."""
    world = World(stack, job_id)
    world.aim(has_job=True)
    instances = stack.running(CLUSTER)
    ran = {instance: processes(instance) for instance in instances}
    began, step = time.monotonic(), stack.job(job_id)["step"]
    for instance in instances:
        world.strike("partition", target=instance, seconds=seconds)
    until("nobody is heard", lambda: _unheard(stack) == NODES, SOON_S)
    until(
        "all are heard again",
        lambda: time.monotonic() - began > seconds and len(stack.running(CLUSTER)) == NODES,
        seconds + 60,
        every=1.0,
    )
    world.check_undisturbed()
    assert sorted(stack.running(CLUSTER)) == sorted(instances), "a host was replaced"
    assert all(ran[instance] <= processes(instance) for instance in instances), "a process was ended"
    until("the steps of that time are told", lambda: stack.job(job_id)["step"] > step + seconds, SOON_S)


def _unheard(stack: Stack) -> int:
    return sum(one["status"] in ("Holding", "Wanted") for one in stack.rest.every("/v1/faults", "faults", live="true"))


@pytest.mark.timeout(180)
def test_twenty_seconds_without_any_agent_restart_nothing(stack, cluster, job_id):
    _cut_off(stack, job_id, 20.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_minutes_without_any_agent_restart_nothing(stack, cluster, job_id):
    _cut_off(stack, job_id, 600.0)
