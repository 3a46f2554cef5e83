"""How soon something is done about what is the matter with a node, with the whole control plane in the loop, on the local provider.

Usage: python -m benchmarks.reactions [--rounds 5] [--json FILE]

An embedded stack of its own and a cluster of 4 local nodes with simulated accelerators, one of which trains. Three reactions, each measured from
outside by the clock of this machine:

- a driver's line in a node's kernel log (Xid 74) → the node has its label and its taint, as DescribeNodeHealth tells;
- `everstep fault spot-notice` → a training process on the node has been told;
- the loss of a killed node is concluded (its event) → its replacement is asked for at the provider (the new host's first file).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3

from agent.accelerators.script import Script
from everstep.demo.story import INSTANCE_TYPE, ROLE, kill_node
from everstep.embedded import control
from everstep.embedded.home import Home
from everstep.rest import Rest

NODES = 4
LIMIT_S = 120.0
POLL_S = 0.01
CLUSTER = "reactions"
HEALTH = "sagemaker.amazonaws.com/node-health-status"
GOALS = {"Xid → label and taint": 1.0, "spot notice → job told": 2.0, "loss confirmed → replacement launched": 1.0}
TOLD = {
    "EVERSTEP_ACCELERATORS": "simulated:nvidia",
    "EVERSTEP_SIMULATED_DEVICES": "8",
    "EVERSTEP_DRAIN_LIMIT_S": "5",
    "EVERSTEP_REPAIR_BRAKE_WINDOW_S": "1",  # one after the other is not many at once
}


class Bench:
    """One cluster with one job, whose nodes get into trouble again and again."""

    def __init__(self, home: Home) -> None:
        exports = control.exports(home)
        self.home = home
        self.notes = home.root / "notes"
        self.rest = Rest(exports["EVERSTEP_URL"], exports["EVERSTEP_TOKEN"])
        self.sagemaker = boto3.client(
            "sagemaker",
            endpoint_url=exports["AWS_ENDPOINT_URL_SAGEMAKER"],
            region_name=exports["AWS_DEFAULT_REGION"],
            aws_access_key_id=exports["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=exports["AWS_SECRET_ACCESS_KEY"],
        )
        self.job_id = ""

    def run(self, rounds: int) -> dict[str, list[float]]:
        group = {"InstanceGroupName": "workers", "InstanceType": INSTANCE_TYPE, "InstanceCount": NODES, "ExecutionRole": ROLE}
        self.sagemaker.create_cluster(ClusterName=CLUSTER, InstanceGroups=[group], NodeProvisioningMode="Continuous")
        self._await("the cluster", lambda: len(self._running()) == NODES)
        script = Path(__file__).with_name("notice_job.py")
        job = {
            "name": "reactions",
            "cluster": CLUSTER,
            "command": [sys.executable, script.name, str(self.notes)],
            "working_dir": str(script.parent),
            "replicas": 1,
            "processes_per_node": 1,
            "max_restarts": 1000,
        }
        self.job_id = self.rest.post("/v1/jobs", job)["job_id"]
        measures = (self._xid, self._notice, self._loss)
        return {name: [measure() for _ in range(rounds)] for name, measure in zip(GOALS, measures, strict=True)}

    def _xid(self) -> float:
        instance = self._settled()[0]
        began = time.time()
        Script(self.home.hosts / instance / "state").xid(74)

        def is_marked() -> bool:
            health = self._health(instance)
            return health["labels"].get(HEALTH) == "UnschedulablePendingReplacement" and any(
                taint["key"] == HEALTH for taint in health["taints"]
            )

        self._await("label and taint", is_marked)
        took = time.time() - began
        self._await("its end", lambda: instance not in self._running())
        return took

    def _notice(self) -> float:
        self._settled()
        instance = self._trains_on()
        before = self.notes.read_text() if self.notes.exists() else ""
        began = time.time()
        fault = self.rest.post("/v1/faults", {"kind": "spot-notice", "target": instance, "seconds": 600})["fault_id"]
        self._await("the job told", lambda: self.notes.exists() and self.notes.read_text() != before)
        where, at = self.notes.read_text()[len(before) :].split()[:2]
        if where != instance:
            message = f"{where} was told of the notice of {instance}"
            raise RuntimeError(message)
        self.rest.delete(f"/v1/faults/{fault}")
        self._await("the notice taken back", lambda: self._health(instance)["leave_why"] is None)
        return float(at) - began

    def _loss(self) -> float:
        instance = self._settled()[0]
        known = set(self.home.hosts.glob("i-*"))
        kill_node(instance)
        self._await("the loss told", lambda: self._lost_at(instance))
        lost = self._lost_at(instance)
        self._await("another host", lambda: self._launched(known, lost))
        return min(self._launched(known, lost)) - lost

    def _lost_at(self, instance: str) -> float:
        """In Unix seconds; 0 as long as nobody says so."""
        events = self.sagemaker.list_cluster_events(ClusterName=CLUSTER, NodeId=instance, MaxResults=20)["Events"]
        told = (event["EventTime"] for event in events if event["Description"].startswith("The node is lost"))
        return float(next((at.timestamp() for at in told), 0.0))

    def _launched(self, known: set[Path], after: float) -> list[float]:
        """When hosts that were not known came to be, since then."""
        hosts = [place / "host.json" for place in set(self.home.hosts.glob("i-*")) - known]
        return [at for host in hosts if host.exists() and (at := host.stat().st_mtime) >= after]

    def _settled(self) -> list[str]:
        """Waits until every node runs and takes work, and the job trains; returns the nodes without work."""

        def is_settled() -> bool:
            running = self._running()
            fit = [one for one in running if self._health(one)["schedulability"] == "Schedulable"]
            job = self._job()
            return len(fit) == NODES and job["status"] == "Training" and job["step"] > 0 and bool(self._trains_on())

        self._await("everything well", is_settled)
        busy = {process["instance_id"] for process in self._job()["processes"]}
        return [one for one in self._running() if one not in busy]

    def _trains_on(self) -> str:
        return next((str(one["instance_id"]) for one in self._job()["processes"] if one["rank"] == 0), "")

    def _job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.get(f"/v1/jobs/{self.job_id}")
        return found

    def _health(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.get(f"/v1/clusters/{CLUSTER}/nodes/{node}/health")
        return found

    def _running(self) -> list[str]:
        listed = self.sagemaker.list_cluster_nodes(ClusterName=CLUSTER)["ClusterNodeSummaries"]
        return [node["InstanceId"] for node in listed if node["InstanceStatus"]["Status"] == "Running"]

    def _await(self, what: str, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            if time.monotonic() > deadline:
                message = f"{what}: not within {LIMIT_S:.0f} s"
                raise TimeoutError(message)
            time.sleep(POLL_S)


def tell(found: dict[str, list[float]]) -> str:
    """A table: medians, ranges and goals in seconds."""
    rounds = max(len(values) for values in found.values())
    lines = [f"reactions to trouble with a node, {rounds} rounds, seconds", f"  {'':<38} median   min–max        goal"]
    for name, values in found.items():
        median, goal = statistics.median(values), GOALS[name]
        verdict = "met" if median <= goal else "NOT met"
        lines.append(f"  {name:<38} {median:6.3f}   {min(values):.3f}–{max(values):.3f}   ≤ {goal:g} {verdict}")
    return "\n".join(lines)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        home = Home.at(Path(folder))
        control.start_detached(home, 0, {**os.environ, **TOLD}, lambda _service, _state: None)
        try:
            found = Bench(home).run(options.rounds)
        finally:
            control.shut_down(home)
    print(tell(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
