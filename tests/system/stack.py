"""What system tests do with a stack: drive it through its public doors, and kill its parts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import boto3
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

from everstep.demo.story import kill_node
from everstep.embedded import control, procfs, state
from everstep.embedded.home import Home
from everstep.embedded.stack import why_not_ready
from everstep.protocol import NODE_ID_VARIABLE
from everstep.rest import Rest, RestError
from tests.patience import LOW_FLOORS, PATIENCE

ROLE = "arn:aws:iam::123456789012:role/test"
SCRIPT = Path(__file__).with_name("small_job.py")
HEALTH = {
    **LOW_FLOORS,
    "EVERSTEP_HEALTH_STRESS_S": "0.05",
    "EVERSTEP_HEALTH_DISK_MIB": "1",
    "EVERSTEP_HEALTH_MEMORY_MIB": "4",
    "EVERSTEP_HEALTH_LINK_MIB": "1",
    "EVERSTEP_HEALTH_REDUCE_MIB": "1",
}
"""Health checks that burn for a moment."""
REPAIRS = {
    "EVERSTEP_ACCELERATORS": "simulated:nvidia",
    "EVERSTEP_SIMULATED_DEVICES": "2",
    "EVERSTEP_DRAIN_LIMIT_S": "10",
    "EVERSTEP_REPAIR_BRAKE_WINDOW_S": "1",
}
"""Accelerators that faults can strike, and no hold on repairs because of those of a moment ago."""
ENDED = ("Succeeded", "Failed", "Stopped")
UNREACHABLE = (EndpointConnectionError, HTTPClientError, RestError)


def group(name: str, count: int, **more) -> dict:
    return {"InstanceGroupName": name, "InstanceType": "ml.c5.large", "InstanceCount": count, "ExecutionRole": ROLE, **more}


def until(what: str, is_so: Callable[[], object], seconds: float = 60.0, every: float = 0.1):
    """Polls a public door until it says so; there is no event to await across it. Returns what it said."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        try:
            found = is_so()
        except (*UNREACHABLE, ClientError) as error:
            found, last = None, error
        else:
            last = found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds * PATIENCE} s; last: {last}"
        time.sleep(every)


@dataclass
class Stack:
    home: Home
    exports: dict[str, str]

    @cached_property
    def sagemaker(self):
        return boto3.client(
            "sagemaker",
            endpoint_url=self.exports["AWS_ENDPOINT_URL_SAGEMAKER"],
            region_name=self.exports["AWS_DEFAULT_REGION"],
            aws_access_key_id=self.exports["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.exports["AWS_SECRET_ACCESS_KEY"],
        )

    @cached_property
    def rest(self) -> Rest:
        return Rest(self.exports["EVERSTEP_URL"], self.exports["EVERSTEP_TOKEN"])

    def close(self) -> None:
        self.sagemaker.close()
        with self.rest:
            pass

    # ------------------------------------------------------------------ clusters

    def status(self, name: str) -> str:
        """The cluster's status; ``gone`` when it does not exist."""
        try:
            return self.sagemaker.describe_cluster(ClusterName=name)["ClusterStatus"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFound":
                return "gone"
            raise

    def nodes(self, name: str) -> list[dict]:
        pages = self.sagemaker.get_paginator("list_cluster_nodes").paginate(ClusterName=name)
        return [node for page in pages for node in page["ClusterNodeSummaries"]]

    def running(self, name: str) -> list[str]:
        return [node["InstanceId"] for node in self.nodes(name) if node["InstanceStatus"]["Status"] == "Running"]

    def create_cluster(self, name: str, *groups: dict, **more) -> list[str]:
        """Creates it and waits until all its nodes run; returns their instance ids."""
        self.sagemaker.create_cluster(ClusterName=name, InstanceGroups=list(groups), **more)
        wanted = sum(one["InstanceCount"] for one in groups)
        until(f"{name} in service", lambda: self.status(name) == "InService" and len(self.running(name)) == wanted)
        return self.running(name)

    def delete_cluster(self, name: str) -> None:
        if self.status(name) != "gone":
            self.sagemaker.delete_cluster(ClusterName=name)
            until(f"{name} gone", lambda: self.status(name) == "gone")

    # ------------------------------------------------------------------ jobs

    def submit(self, cluster: str, *, replicas: int, steps: int = 40, pause_s: float = 0.03, **more) -> str:
        env = {"OMP_NUM_THREADS": "1", **more.pop("env", {})}
        job = {
            "name": more.pop("name", f"job-{time.time_ns() % 1_000_000}"),
            "cluster": cluster,
            "command": [sys.executable, SCRIPT.name, str(steps), str(pause_s)],
            "working_dir": str(SCRIPT.parent),
            "replicas": replicas,
            "processes_per_node": 1,
            "env": env,
            **more,
        }
        return self.rest.post("/v1/jobs", job)["job_id"]

    def job(self, job_id: str) -> dict:
        return self.rest.get(f"/v1/jobs/{job_id}")

    def await_job(self, job_id: str, seconds: float = 90.0) -> dict:
        until(f"{job_id} ended", lambda: self.job(job_id)["status"] in ENDED, seconds)
        return self.job(job_id)

    def await_step(self, job_id: str, step: int, seconds: float = 60.0) -> dict:
        def there() -> dict | None:
            job = self.job(job_id)
            assert job["status"] not in ENDED or job["step"] >= step, f"{job['status']}: {job['why']}"
            return job if job["step"] >= step else None

        return until(f"step {step}", there, seconds)

    def losses(self, job_id: str) -> dict[int, float]:
        return {step["number"]: step["loss"] for step in self.rest.get(f"/v1/jobs/{job_id}/steps")["steps"]}

    # ------------------------------------------------------------------ faults

    def kill_service(self, service: str) -> None:
        """SIGKILL to a process of the control plane, and to what it has forked."""
        found = state.read(self.home)
        key = found.services[service].key
        if key is not None:
            procfs.send([key, *_children(key.pid)], signal.SIGKILL)

    def await_ready(self, seconds: float = 45.0) -> None:
        port = state.read(self.home).port
        deadline = time.monotonic() + seconds * PATIENCE
        while (why := why_not_ready(port)) is not None:
            assert time.monotonic() < deadline, f"not ready within {seconds} s: {why}; {state.read(self.home).services}"
            time.sleep(0.1)

    def kill_node(self, instance_id: str) -> None:
        kill_node(instance_id)

    def agent_of(self, instance_id: str) -> procfs.ProcessKey | None:
        return next((key for key in procfs.find(lambda env: env.get(NODE_ID_VARIABLE) == instance_id) if _is_agent(key.pid)), None)

    def hosts(self) -> set[str]:
        """The instance ids of which anything is alive in this home, by the kernel's word."""
        ids = {procfs.environment(key.pid).get(NODE_ID_VARIABLE, "") for key in procfs.find(lambda env: NODE_ID_VARIABLE in env)}
        return {instance for instance in ids if (self.home.hosts / instance).is_dir()}


@contextmanager
def running_stack(home_folder: Path) -> Iterator[Stack]:
    """A whole stack, real in every part, with room for a dozen nodes; it ends with the block, and its nodes with it."""
    home = Home.at(home_folder)
    told = {"EVERSTEP_LOCAL_CAPACITY": "12", "EVERSTEP_LIFECYCLE_PAUSE_S": "0.2", "EVERSTEP_LIFECYCLE_LIMIT_S": "10"}
    control.start_detached(home, 0, {**os.environ, **HEALTH, **REPAIRS, **told}, lambda _service, _state: None)
    try:
        stack = Stack(home, control.exports(home))
        yield stack
        stack.close()
    finally:
        control.shut_down(home)


def aws(stack: Stack, *arguments: str) -> subprocess.CompletedProcess:
    """The unmodified ``aws`` command line, with what ``everstep env`` exports."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("aws")), "sagemaker", *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(stack.home.root), **stack.exports},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _children(pid: int) -> list[procfs.ProcessKey]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            key = procfs.key_of(int(entry.name)) if parent == pid else None
            found += [key] if key else []
    return found


def _is_agent(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"agent" in command
