"""SIGKILL of a whole node → the survivors' next step, with the whole control plane in the loop and a warm spare standing by.

Usage: python -m benchmarks.node_loss [--quick] [--kills 7] [--seed 1] [--no-torchrun] [--json FILE]

An embedded stack of its own, a cluster of 6 local nodes, the demonstration's GPT on 4 of them; every killed node is replaced and its
successor warm before the next one is killed. Beside the phases of each recovery it prints the length of a step: the last phase holds one.
Then torchrun restarts the same model on as many ranks, of which one is killed: there no node is lost, and the last ten steps are done again.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3

from benchmarks import figures, torchrun
from everstep.demo import train_gpt
from everstep.demo.ledger import Ledger
from everstep.demo.story import INSTANCE_TYPE, MEMBERS, ROLE, kill_node
from everstep.embedded import control
from everstep.embedded.home import Home
from everstep.rest import Rest

NODES = MEMBERS + 2
LIMIT_S = 90.0
GOAL_S = 1.0
"""The median that a reader is entitled to, on two cores with this model."""


class Bench:
    """One job on one stack, killed again and again."""

    def __init__(self, exports: dict[str, str], seed: int) -> None:
        self.rest = Rest(exports["EVERSTEP_URL"], exports["EVERSTEP_TOKEN"])
        self.sagemaker = boto3.client(
            "sagemaker",
            endpoint_url=exports["AWS_ENDPOINT_URL_SAGEMAKER"],
            region_name=exports["AWS_DEFAULT_REGION"],
            aws_access_key_id=exports["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=exports["AWS_SECRET_ACCESS_KEY"],
        )
        self.random = random.Random(seed)  # noqa: S311, it draws moments
        self.job_id = ""

    def run(self, kills: int) -> list[dict[str, float]]:
        group = {"InstanceGroupName": "workers", "InstanceType": INSTANCE_TYPE, "InstanceCount": NODES, "ExecutionRole": ROLE}
        self.sagemaker.create_cluster(ClusterName="bench", InstanceGroups=[group])
        self._await("the cluster", lambda: self.sagemaker.describe_cluster(ClusterName="bench")["ClusterStatus"] == "InService")
        script = Path(train_gpt.__file__)
        job = {
            "name": "bench",
            "cluster": "bench",
            "command": [sys.executable, script.name, "--steps", "1000000"],
            "working_dir": str(script.parent),
            "replicas": MEMBERS,
            "processes_per_node": 1,
            "spares": 1,
            "env": {"OMP_NUM_THREADS": "1"},
        }
        self.job_id = self.rest.post("/v1/jobs", job)["job_id"]
        return [self._one_kill() for _ in range(kills)]

    def _one_kill(self) -> dict[str, float]:
        self._await("a warm spare", self._is_settled)
        time.sleep(self.random.uniform(0.0, 0.5))
        before = self._look()
        members = [process for process in before["processes"] if process["rank"] is not None and process["status"] == "Ready"]
        ledger = Ledger(job=before, killed=self.random.choice(members)["instance_id"], killed_at=time.time())
        kill_node(str(ledger.killed))

        def has_recovered() -> bool:
            ledger.job = self._look()
            return ledger.after_kill is not None

        self._await("the next step", has_recovered)
        steps = self.rest.get(f"/v1/jobs/{self.job_id}/steps", after=max(-1, before["step"] - 21))["steps"]
        step_s = statistics.median(step["seconds"] for step in steps if step["number"] < before["step"])
        return {**ledger.timeline(), "one step": round(step_s, 3), "steps lost": float(ledger.job["steps_lost"])}

    def _is_settled(self) -> bool:
        job = self._look()
        ready = [process for process in job["processes"] if process["status"] == "Ready"]
        running = [
            node
            for node in self.sagemaker.list_cluster_nodes(ClusterName="bench")["ClusterNodeSummaries"]
            if node["InstanceStatus"]["Status"] == "Running"
        ]
        is_whole = len(ready) == MEMBERS + 1 and len(running) == NODES
        return is_whole and job["status"] == "Training" and job["step"] > (job["generations"][-1]["step"] or 0) + 5

    def _look(self) -> dict[str, Any]:
        return self.rest.get(f"/v1/jobs/{self.job_id}")

    def _await(self, what: str, is_so: Any) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            if time.monotonic() > deadline:
                message = f"{what}: not within {LIMIT_S:.0f} s"
                raise TimeoutError(message)
            time.sleep(0.2)


def main() -> None:
    options = _options()
    environment = figures.environment()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        home = Home.at(Path(folder))
        control.start_detached(home, 0, os.environ, lambda _service, _state: None)
        try:
            found = Bench(control.exports(home), options.seed).run(options.kills)
        finally:
            control.shut_down(home)
        restarts = [] if options.no_torchrun else _torchrun(options, Path(folder) / "torchrun")
    print(figures.told(environment))
    print(f"node killed → next step of the survivors, {len(found)} kills, seconds after SIGKILL (median, min–max)")
    for name in found[0]:
        values = [one[name] for one in found if name in one]
        print(f"  {name:<12} {statistics.median(values):6.3f}   {min(values):.3f}–{max(values):.3f}")
    median = statistics.median(one["first step"] for one in found)
    print(f"goal ≤ {GOAL_S} s: {'met' if median <= GOAL_S else 'NOT met'} ({median:.3f} s)")
    if restarts:
        peer = statistics.median(restarts)
        print(
            f"torchrun, the same model: {peer:.3f} s ({min(restarts):.3f}–{max(restarts):.3f}), {peer / median:.1f} times as long"
        )
    figures.write(options, {"environment": environment, "everstep": found, "torchrun": restarts})


def _torchrun(options: argparse.Namespace, folder: Path) -> list[float]:
    folder.mkdir()
    script = Path(__file__).with_name("gpt_torchrun.py")
    return torchrun.kills(script, [], folder, ranks=MEMBERS, count=options.kills, seed=options.seed)


def _options() -> argparse.Namespace:
    parser = figures.parser(__doc__)
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-torchrun", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.kills, options.no_torchrun = 2, True
    return options


if __name__ == "__main__":
    main()
