"""Rows that tests start from, made by the domain's own functions wherever it has one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from everstep.tiers import CopyStatus
from models.access.changes import request_key
from models.access.table import Credential
from models.checkpoint import changes as checkpoint_changes
from models.checkpoint import reports as checkpoint_reports
from models.cluster import changes as cluster_changes
from models.cluster import queries as clusters
from models.cluster.changes import ClusterSpec, GroupSpec, request_cluster
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.ids import InstanceId
from models.job import changes as job_changes
from models.job import reports as job_reports
from models.job.changes import JobSpec, request_job
from models.job.states import JobState, ProcessState
from models.job.table import Job, JobProcess
from models.node.changes import Arrival, report_registered, settle_launched, settle_lost, settle_node, settle_wanted_node
from models.node.states import NodeState
from models.node.table import Node

MASTER_KEY = bytes(range(32))
NOW = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


def group_spec(name: str = "workers", count: int = 4, **changes: Any) -> GroupSpec:
    wire = {"InstanceGroupName": name, "InstanceType": "ml.c5.xlarge", "InstanceCount": count}
    return GroupSpec(**{"name": name, "instance_type": "ml.c5.xlarge", "count": count, "min_count": 0, "spec": wire} | changes)


def cluster(session: Session, name: str = "c1", *, groups: tuple[GroupSpec, ...] | None = None, **changes: Any) -> Cluster:
    """A cluster as it was asked for a moment ago, with one group of four unless told otherwise."""
    wish = {"name": name, "is_continuous": False, "settings": {}, "groups": groups or (group_spec(),)} | changes
    return request_cluster(session, ClusterSpec(**wish), region="us-east-1", account_id="123456789012", now=NOW)


def node(session: Session, of: Cluster, *, number: int = 1, state: NodeState = NodeState.READY, now: datetime = NOW) -> Node:
    """A node of the cluster's first group that has come as far as ``state``: requested, booting, checking or ready."""
    group = clusters.groups(session, of.id)[0]
    made = settle_wanted_node(session, group, now=now)
    if state is NodeState.REQUESTED:
        return made
    settle_launched(session, made, instance_id=InstanceId(f"i-{number:017x}"), address=f"127.77.0.{number}", now=now)
    if state is NodeState.BOOTING:
        return made
    arrival = Arrival(boot="boot-1", address=f"127.77.0.{number}", rendezvous_port=29500, facts={"vcpus": 4})
    report_registered(session, made, arrival, node_token=f"token-{made.id}", now=now)
    if state is NodeState.READY:
        settle_node(session, made, NodeState.READY, why="Checks passed.", now=now)
    return made


def nodes(session: Session, of: Cluster, count: int) -> list[Node]:
    """Ready nodes."""
    return [node(session, of, number=number) for number in range(1, count + 1)]


def job(session: Session, of: Cluster, name: str = "j1", **changes: Any) -> Job:
    """A queued job that wants two nodes with a process each, and no spare."""
    wish = {"replicas": 2, "processes_per_node": 1, "spares": 0, "max_restarts": 3, "spec": {"command": ["python", "train.py"]}}
    return request_job(session, JobSpec(name=name, cluster_id=of.id, **(wish | changes)), now=NOW)


def settle_job(session: Session, of: Job, state: JobState) -> None:
    job_changes.settle_job(session, of, state, why="The test says so.", now=NOW)


def access_key(session: Session, key_id: str, secret: str = "secret", *, master_key: bytes = MASTER_KEY) -> Credential:
    request_key(session, key_id, secret, account_id="123456789012", master_key=master_key, now=NOW)
    return session.get_one(Credential, key_id)


def namespace(session: Session, of: Job, name: str | None = None) -> str:
    """The namespace in which the job saves, its own id unless told otherwise."""
    return checkpoint_changes.request_namespace(session, of, name or of.id, now=NOW).name


def held(
    session: Session, on: Node, namespace_: str, step: int, indices: Sequence[int], *, world_size: int = 1, **changes: Any
) -> None:
    """The node tells that it holds these shards of a step; ``changes`` are of the report."""
    status = changes.pop("status", CopyStatus.SEALED)
    copies = [checkpoint_reports.Copy(index, status, 1 << 20, f"{index:032x}") for index in indices]
    at = changes.pop("at", NOW + timedelta(seconds=step))
    told = {"save": f"save-{step}", "world_size": world_size, "copies": copies, "written_at": at, "at": at} | changes
    checkpoint_reports.report_copies(session, on, checkpoint_reports.Held(namespace_, step, **told), now=NOW)


def durable(session: Session, of: Cluster, namespace_: str, step: int, **changes: Any) -> None:
    """Some node tells that it has committed a step to the object store."""
    told = {"save": f"save-{step}", "world_size": 1, "nbytes": 2 << 20, "is_withdrawn": False, "at": NOW + timedelta(seconds=step)}
    checkpoint_reports.report_durable(session, of.id, checkpoint_reports.Durable(namespace_, step, **(told | changes)), now=NOW)


def settle_cluster(session: Session, of: Cluster, state: ClusterState) -> None:
    cluster_changes.settle_cluster(session, of, state, why="The test says so.", now=NOW)


def reach(session: Session, process: JobProcess, state: ProcessState) -> None:
    """A process reports that it has come as far as ``state``: started, ready, finished or exited."""
    if state is ProcessState.FINISHED:
        generation = session.get_one(Job, process.job_id).generation
        job_reports.report_finished(session, process.id, generation, step=1, digest="0" * 64, now=NOW)
    else:
        job_reports.report_process(session, process.id, state, now=NOW)


def processes(session: Session, of: Job, count: int) -> list[JobProcess]:
    """Ready processes of a job, one on each of as many new nodes."""
    places = [(made.id, 0) for made in nodes(session, session.get_one(Cluster, of.cluster_id), count)]
    wanted = job_changes.settle_processes(session, of, places, now=NOW)
    for process in wanted:
        reach(session, process, ProcessState.READY)
    return wanted


def settle_group(session: Session, cluster_: Cluster, group: InstanceGroup, state: GroupState) -> None:
    cluster_changes.settle_group(session, cluster_, group, state, why="The test says so.", now=NOW)


def release(session: Session, of: Node) -> None:
    """A ready node is lost, released, and known to its provider no longer."""
    settle_node(session, of, NodeState.SUSPECT, why="Silent.", now=NOW)
    settle_lost(session, of, witnesses="the test", now=NOW)
    settle_node(session, of, NodeState.GONE, why="The provider knows it no longer.", now=NOW)


def end_cluster(session: Session, of: Cluster) -> None:
    cluster_changes.request_deletion(session, of, now=NOW)
    settle_cluster(session, of, ClusterState.DELETED)
