"""The demonstration's plot, told through public doors only: boto3 for the cluster, REST for the job, SIGKILL for the fault."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from everstep.demo.ledger import RECOVERED, Ledger
from everstep.embedded import procfs
from everstep.protocol import FAULTS_VARIABLE, NODE_ID_VARIABLE
from everstep.rest import Rest, RestError
from everstep.testing.faults import Fault

ROLE = "arn:aws:iam::123456789012:role/everstep-demo"
INSTANCE_TYPE = "ml.c5.large"
MEMBERS = 4
SPARES = 1
ENDED = ("Succeeded", "Failed", "Stopped")

PHASES = {
    "forward": ("forward", 20.0),
    "backward": ("backward", 0.0),
    "all-reduce": ("backward", 60.0),
    "vote": ("vote", 0.0),
    "update": ("mid-update", 0.0),
    "after-update": ("after-update", 0.0),
}
"""Phase → the point of ``everstep.testing.faults``, and the longest delay after it in milliseconds, of which a part is drawn.

DDP's all-reduce runs while the backward pass does, so it is struck by a delay after the middle of that.
"""

_POLL_SECONDS = 0.2
_CLUSTER_SECONDS = 60.0
_JOB_SECONDS = 240.0

Tell = Callable[[str, Ledger], None]
"""Told at each turn of the plot what has just happened (an empty string: progress only), with the ledger so far."""


class DemoError(Exception):
    """The demonstration did not go as it should; the message says where to look."""


class Story:
    """One run of the plot.

    ``exports`` are the variables that ``everstep env`` prints, ``home`` the stack's directory; ``seed`` draws the node and the step of the
    kill. ``phase``, one of ``PHASES``, kills the node from inside, in that phase of the step; without it the kill comes from outside.
    """

    def __init__(self, exports: dict[str, str], home: Path, *, steps: int, seed: int, tell: Tell, phase: str | None = None) -> None:
        self.ledger = Ledger()
        self._random = random.Random(seed)  # noqa: S311  (a plot, not a secret)
        self._steps = steps
        self._phase = phase
        self._tell = tell
        self._sagemaker = boto3.client(
            "sagemaker",
            endpoint_url=exports["AWS_ENDPOINT_URL_SAGEMAKER"],
            region_name=exports["AWS_DEFAULT_REGION"],
            aws_access_key_id=exports["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=exports["AWS_SECRET_ACCESS_KEY"],
        )
        self._rest = Rest(exports["EVERSTEP_URL"], exports["EVERSTEP_TOKEN"])
        self._name = f"demo-{seed}-{int(time.time())}"
        self._faults = home / f"{self._name}.faults"
        self._fired = self._faults.with_name(f"{self._faults.name}.fired")

    def run(self) -> Ledger:
        """Plays it to the end.

        Raises:
            DemoError: something did not happen within its time, or was refused; the cluster is deleted all the same.
        """
        try:
            with self._cluster(), self._faults_file():
                self._submit()
                self._train_until(1 if self._phase else self._random.randint(self._steps // 3, self._steps // 2))
                self._kill_a_node()
                self._train_on()
                self._await_full_cluster()
        except (BotoCoreError, ClientError, RestError) as error:
            raise DemoError(str(error)) from error
        return self.ledger

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        groups = [self._group("workers", MEMBERS), self._group("spares", SPARES)]
        try:
            created = self._sagemaker.create_cluster(ClusterName=self._name, InstanceGroups=groups, NodeRecovery="Automatic")
            self.ledger.cluster_arn = created["ClusterArn"]
            self._tell(f"boto3 created cluster {self._name} ({MEMBERS} nodes and {SPARES} spare)", self.ledger)
            self._await_full_cluster()
            self._tell("all nodes are running", self.ledger)
            yield
        finally:
            self._delete()

    @contextmanager
    def _faults_file(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._faults.unlink(missing_ok=True)
            shutil.rmtree(self._fired, ignore_errors=True)

    def _group(self, name: str, count: int) -> dict[str, Any]:
        return {"InstanceGroupName": name, "InstanceType": INSTANCE_TYPE, "InstanceCount": count, "ExecutionRole": ROLE}

    def _await_full_cluster(self) -> None:
        def is_full() -> bool:
            status = self._sagemaker.describe_cluster(ClusterName=self._name)["ClusterStatus"]
            if status == "Failed":
                message = f"cluster {self._name} failed; `everstep status` and the logs beside it say why"
                raise DemoError(message)
            pages = self._sagemaker.get_paginator("list_cluster_nodes").paginate(ClusterName=self._name)
            nodes = [node for page in pages for node in page["ClusterNodeSummaries"]]
            running = [node["InstanceId"] for node in nodes if node["InstanceStatus"]["Status"] == "Running"]
            present = [instance for instance in running if instance != self.ledger.killed]
            self.ledger.nodes = present
            return status == "InService" and len(present) == MEMBERS + SPARES

        self._await("the cluster at its target count", is_full, _CLUSTER_SECONDS)
        if self.ledger.killed is not None:
            self.ledger.replaced_at = time.time()
            self._tell("the control plane has replaced the node: the cluster is back at its target count", self.ledger)

    def _delete(self) -> None:
        """Also when the creation was interrupted, so that nobody knows whether there is a cluster."""

        def is_gone() -> bool:
            try:
                status = self._sagemaker.describe_cluster(ClusterName=self._name)["ClusterStatus"]
                if status != "Deleting":
                    self._sagemaker.delete_cluster(ClusterName=self._name)
            except ClientError as error:
                if error.response["Error"]["Code"] not in {"ResourceNotFound", "ConflictException"}:
                    raise
                return error.response["Error"]["Code"] == "ResourceNotFound"
            return False

        self._await("the deletion of the cluster", is_gone, _CLUSTER_SECONDS)

    def _submit(self) -> None:
        script = Path(__file__).with_name("train_gpt.py")
        job = {
            "name": self._name,
            "cluster": self._name,
            "command": [sys.executable, script.name, "--steps", str(self._steps)],
            "working_dir": str(script.parent),
            "replicas": MEMBERS,
            "processes_per_node": 1,
            "spares": SPARES,
            "env": {"OMP_NUM_THREADS": "1", **self._fault()},
        }
        try:
            self.ledger.job_id = self._rest.post("/v1/jobs", job, key=self._name)["job_id"]
        except RestError as error:
            message = f"the job was refused: {error}"
            raise DemoError(message) from error
        self._tell(
            f"job {self.ledger.job_id} submitted: a GPT of a million parameters, data parallel on {MEMBERS} nodes", self.ledger
        )

    def _fault(self) -> dict[str, str]:
        """A kill from inside, in one phase of a step, where the plot asks for that instead of a kill from outside."""
        if self._phase is None:
            return {}
        point, after_ms = PHASES[self._phase]
        step = self._random.randint(self._steps // 3, self._steps // 2)
        fault = Fault(
            self._random.randrange(MEMBERS), point, step=step, kind="kill-node", after_ms=self._random.uniform(0.0, after_ms)
        )
        self._faults.write_text(json.dumps([asdict(fault)]))
        return {FAULTS_VARIABLE: str(self._faults)}

    def _train_until(self, step: int) -> None:
        self._await(f"step {step}", lambda: self._look()["step"] >= step, _JOB_SECONDS)

    def _kill_a_node(self) -> None:
        job = self._look()
        members = [process for process in job["processes"] if process["rank"] is not None]
        if self._phase is not None:
            self._await_inner_kill(members)
            return
        victim = self._random.choice(sorted({process["instance_id"] for process in members}))
        self._note_survivors(members, victim)
        self.ledger.killed, self.ledger.killed_at = victim, time.time()
        kill_node(victim)
        self._tell(f"SIGKILL to every process of node {victim}, at step {job['step']}", self.ledger)

    def _note_survivors(self, members: list[dict[str, Any]], victim: str) -> None:
        self.ledger.survivors = {process["process_id"]: process["pid"] for process in members if process["instance_id"] != victim}

    def _await_inner_kill(self, members: list[dict[str, Any]]) -> None:
        claim = self._fired / "0"
        self._await(f"the kill in phase {self._phase}", lambda: claim.exists() and claim.read_text(), _JOB_SECONDS)
        struck = json.loads(claim.read_text())
        self._note_survivors(members, struck["node"])
        self.ledger.killed, self.ledger.killed_at = struck["node"], struck["at"]
        self._tell(f"node {self.ledger.killed} was killed in phase {self._phase}", self.ledger)

    def _train_on(self) -> None:
        def has_recovered() -> bool:
            job = self._look()
            return self.ledger.after_kill is not None or job["status"] in ENDED

        self._await("the first step after the kill", has_recovered, _JOB_SECONDS)
        self.ledger.survivor_pids_kept = self._survivors_are_members()
        marks = ", ".join(f"{name} {at:.2f} s" for name, at in self.ledger.timeline().items())
        self._tell(f"the survivors went on: {marks}", self.ledger)
        self._await("the end of the job", lambda: self._look()["status"] in ENDED, _JOB_SECONDS)
        if self.ledger.job["status"] != "Succeeded":
            message = f"the job ended as {self.ledger.job['status']}: {self.ledger.job.get('why')}"
            raise DemoError(message)
        self._tell(f"all {self._steps} steps are done", self.ledger)

    def _survivors_are_members(self) -> bool:
        """The same processes, by id and by pid, play in the generation after the kill."""
        generation = self.ledger.after_kill
        pids = {process["process_id"]: process["pid"] for process in self.ledger.job["processes"]}
        if generation is None:
            return False
        sources = {member["process_id"]: member["source"] for member in generation["members"]}
        return all(pids[name] == pid and sources.get(name) not in RECOVERED | {None} for name, pid in self.ledger.survivors.items())

    def _look(self) -> dict[str, Any]:
        job = self._rest.get(f"/v1/jobs/{self.ledger.job_id}")
        after = self.ledger.steps[-1]["number"] if self.ledger.steps else -1
        self.ledger.job = job
        self.ledger.steps += self._rest.get(f"/v1/jobs/{self.ledger.job_id}/steps", after=after)["steps"]
        self._tell("", self.ledger)
        return job

    def _await(self, what: str, is_so: Callable[[], object], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                message = f"{what}: not within {seconds:.0f} s ({self.ledger.job.get('why') or 'no reason is known'})"
                raise DemoError(message)
            time.sleep(_POLL_SECONDS)


def kill_node(instance_id: str) -> None:
    """SIGKILL to whatever carries the node's id, until nothing is left: the node's init may be starting something."""
    while found := list(procfs.find(lambda environment: environment.get(NODE_ID_VARIABLE) == instance_id)):
        procfs.send(found, signal.SIGKILL)
        procfs.await_end(found, 1.0)
