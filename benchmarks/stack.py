"""An embedded stack of its own, with one cluster of local nodes and one job at a time on it: the whole system in the loop."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from everstep.demo.ledger import instant
from everstep.demo.story import INSTANCE_TYPE, ROLE
from everstep.embedded import control
from everstep.embedded.home import Home
from everstep.rest import Rest

LIMIT_S = 120.0
CLUSTER = "bench"
_POLL_S = 0.1
_ENDED = {"Succeeded", "Failed", "Stopped"}


class Stack:
    """The client's side of it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        exports = control.exports(home)
        self.rest = Rest(exports["EVERSTEP_URL"], exports["EVERSTEP_TOKEN"])
        self.sagemaker = boto3.client(
            "sagemaker",
            endpoint_url=exports["AWS_ENDPOINT_URL_SAGEMAKER"],
            region_name=exports["AWS_DEFAULT_REGION"],
            aws_access_key_id=exports["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=exports["AWS_SECRET_ACCESS_KEY"],
        )

    def create_cluster(self, nodes: int, **members: Any) -> None:
        group = {"InstanceGroupName": "workers", "InstanceType": INSTANCE_TYPE, "InstanceCount": nodes, "ExecutionRole": ROLE}
        self.sagemaker.create_cluster(ClusterName=CLUSTER, InstanceGroups=[group], **members)
        await_("the cluster", lambda: len(self.running_nodes()) == nodes)

    def running_nodes(self) -> list[str]:
        listed = self.sagemaker.list_cluster_nodes(ClusterName=CLUSTER)["ClusterNodeSummaries"]
        return [node["InstanceId"] for node in listed if node["InstanceStatus"]["Status"] == "Running"]

    def submit(self, name: str, script: Path, arguments: list[str], **members: Any) -> Job:
        """``members`` of the job besides; one process a node, one thread each."""
        job = {
            "name": name,
            "cluster": CLUSTER,
            "command": [sys.executable, script.name, *arguments],
            "working_dir": str(script.parent),
            "processes_per_node": 1,
            "env": {"OMP_NUM_THREADS": "1"},
            "max_restarts": 1000,
            **members,
        }
        return Job(self.rest, self.rest.post("/v1/jobs", job)["job_id"])


class Job:
    """One job as REST tells it."""

    def __init__(self, rest: Rest, job_id: str) -> None:
        self.rest = rest
        self.job_id = job_id

    def look(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.get(f"/v1/jobs/{self.job_id}")
        return found

    def await_training(self, ranks: int, *, spares: int = 0) -> dict[str, Any]:
        """Until the newest generation has that many members and has trained for some steps, with so many warm spares beside it."""
        seen: dict[str, Any] = {}

        def is_settled() -> bool:
            seen.update(self.look())
            if seen["status"] in _ENDED:
                message = f"the job is {seen['status']}: {seen.get('why')}"
                raise RuntimeError(message)
            newest = seen["generations"][-1] if seen["generations"] else None
            idle = [one for one in seen["processes"] if one["rank"] is None and one["status"] == "Ready"]
            is_whole = newest is not None and len(newest["members"]) == ranks and newest["first_step_at"] and len(idle) >= spares
            return bool(is_whole and seen["status"] == "Training" and seen["step"] > (newest["step"] or 0) + 5)

        await_(f"{ranks} ranks train, {spares} spares wait", is_settled)
        return seen

    def first_step_after(self, number: int, ranks: int) -> dict[str, Any]:
        """The first generation above ``number`` with that many members whose step went through."""
        seen: dict[str, Any] = {}

        def has_stepped() -> bool:
            for one in self.look()["generations"]:
                if one["number"] > number and len(one["members"]) == ranks and one["first_step_at"]:
                    seen.update(one)
            return bool(seen)

        await_(f"a step of {ranks} ranks", has_stepped)
        return seen

    def last_step_before(self, at: float) -> float:
        """When the last step that was committed before ``at`` was, in Unix seconds."""
        after = max(-1, self.look()["step"] - 200)
        times = [instant(step["at"]) or 0.0 for step in self.rest.get(f"/v1/jobs/{self.job_id}/steps", after=after)["steps"]]
        return max(time for time in times if time < at)

    def stop(self) -> None:
        self.rest.post(f"/v1/jobs/{self.job_id}/stop", {})
        await_("the end of the job", lambda: self.look()["status"] in _ENDED)


def await_(what: str, is_so: Callable[[], object], *, every_s: float = _POLL_S) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline:
            message = f"{what}: not within {LIMIT_S:.0f} s"
            raise TimeoutError(message)
        time.sleep(every_s)


@contextmanager
def running(nodes: int, environment: Mapping[str, str] = os.environ, **members: Any) -> Iterator[Stack]:
    """A stack with a cluster of so many nodes, and ``members`` besides, which ends with the context."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        home = Home.at(Path(folder))
        control.start_detached(home, 0, environment, lambda _service, _state: None)
        try:
            stack = Stack(home)
            stack.create_cluster(nodes, **members)
            yield stack
        finally:
            control.shut_down(home)
