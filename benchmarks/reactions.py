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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.accelerators.script import Script
from benchmarks import stack
from everstep.demo.story import kill_node

NODES = 4
POLL_S = 0.01
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

    def __init__(self, running: stack.Stack) -> None:
        self.stack, self.rest, self.sagemaker, self.home = running, running.rest, running.sagemaker, running.home
        self.notes = self.home.root / "notes"
        script = Path(__file__).with_name("notice_job.py")
        self.job = running.submit("reactions", script, [str(self.notes)], replicas=1)

    def run(self, rounds: int) -> dict[str, list[float]]:
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
        self._await("its end", lambda: instance not in self.stack.running_nodes())
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
        events = self.sagemaker.list_cluster_events(ClusterName=stack.CLUSTER, NodeId=instance, MaxResults=20)["Events"]
        told = (event["EventTime"] for event in events if event["Description"].startswith("The node is lost"))
        return float(next((at.timestamp() for at in told), 0.0))

    def _launched(self, known: set[Path], after: float) -> list[float]:
        """When hosts that were not known came to be, since then."""
        hosts = [place / "host.json" for place in set(self.home.hosts.glob("i-*")) - known]
        return [at for host in hosts if host.exists() and (at := host.stat().st_mtime) >= after]

    def _settled(self) -> list[str]:
        """Waits until every node runs and takes work, and the job trains; returns the nodes without work."""

        def is_settled() -> bool:
            running = self.stack.running_nodes()
            fit = [one for one in running if self._health(one)["schedulability"] == "Schedulable"]
            job = self.job.look()
            return len(fit) == NODES and job["status"] == "Training" and job["step"] > 0 and bool(self._trains_on())

        self._await("everything well", is_settled)
        busy = {process["instance_id"] for process in self.job.look()["processes"]}
        return [one for one in self.stack.running_nodes() if one not in busy]

    def _trains_on(self) -> str:
        return next((str(one["instance_id"]) for one in self.job.look()["processes"] if one["rank"] == 0), "")

    def _health(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.get(f"/v1/clusters/{stack.CLUSTER}/nodes/{node}/health")
        return found

    def _await(self, what: str, is_so: Callable[[], object]) -> None:
        stack.await_(what, is_so, every_s=POLL_S)


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
    with stack.running(NODES, {**os.environ, **TOLD}, NodeProvisioningMode="Continuous") as running:
        found = Bench(running).run(options.rounds)
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
