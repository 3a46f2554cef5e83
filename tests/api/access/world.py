"""Two teams, each with a cluster, jobs and what hangs on them, and a cluster that both share. Red is the one who tries; blue is the victim."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from models.cluster import queries as clusters
from models.cluster.table import Cluster, InstanceGroup
from models.events import Event
from models.job import changes as job_changes
from models.job import logs, reports
from models.job.states import ProcessState
from models.job.table import Job
from models.node import changes as node_changes
from models.node.changes import Arrival
from models.node.states import NodeState
from models.node.table import Node
from models.operation.table import Operation
from models.registry import metadata
from models.session import Sessions, unit_of_work
from tests import rows
from tests.api.access.holders import Holder
from tests.api.aws.settling import as_it_comes_into_service
from tests.api.serving import Server, group

SCHEDULING = {"PriorityClasses": [{"Name": "high", "Weight": 80}], "FairShare": "Enabled"}
ALLOTTED = {"ComputeQuotaResources": [{"InstanceType": "ml.c5.xlarge", "Count": 1}]}
VOLUME = "vol-00000000000000b1e"
EKS = "arn:aws:eks:us-east-1:123456789012:cluster/{}"
SAVED = 10
"""The step of which each job of the shared cluster has a checkpoint."""
VPC = {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]}
NEVER_ASKED = frozenset({"alembic_version", "credential", "pulse", "replay"})
"""Tables in which a refused call may leave its trace: the use of a key, an answer to be given again."""


@dataclass(frozen=True)
class World:
    """``ids`` are blue's and the shared cluster's, by the placeholders of the attacks; ``secret`` is what red must never be told."""

    ids: dict[str, str]
    secret: frozenset[str]
    mine: frozenset[str]


def made(server: Server, sessions: Sessions, red: Holder, blue: Holder) -> World:
    admin = server.client()
    for client, name in ((red.sagemaker, "red-cluster"), (blue.sagemaker, "blue-cluster"), (admin, "shared-cluster")):
        client.create_cluster(
            ClusterName=name,
            InstanceGroups=[group("workers", 2)],
            NodeProvisioningMode="Continuous",
            Orchestrator={"Eks": {"ClusterArn": EKS.format(name)}},
            VpcConfig=VPC,
        )
        as_it_comes_into_service(sessions, name)
    admin.close()
    with unit_of_work(sessions) as session:
        of_red, of_blue, shared = (clusters.find(session, f"{name}-cluster") for name in ("red", "blue", "shared"))
        for number, cluster in enumerate((of_red, of_blue, shared, shared, shared), start=1):
            _node(session, cluster, number)
        red_job = _job(session, of_red, shared, "red", 0)
        blue_job = _job(session, of_blue, shared, "blue", 1)
    blue.sagemaker.attach_cluster_node_volume(ClusterArn=of_blue.arn, NodeId=f"i-{2:017x}", VolumeId=VOLUME)
    ids = _asked_by_blue(blue, of_blue.arn, blue_job.id) | {"job": blue_job.id, "key": blue.key_id, "token": blue.token_id}
    with sessions() as session:
        ids |= _found(session, of_blue.id, shared.id, blue_job)
        return World(ids, _secret(session, of_blue, blue_job) | {blue.key_id, blue.token_id}, frozenset({of_red.id, red_job.id}))


def _node(session: Session, cluster: Cluster, number: int) -> Node:
    node = node_changes.settle_wanted_node(session, clusters.groups(session, cluster.id)[0], now=rows.NOW)
    node_changes.settle_launched(session, node, instance_id=f"i-{number:017x}", address=f"127.77.0.{number}", now=rows.NOW)
    arrival = Arrival(boot="boot-1", address=f"127.77.0.{number}", rendezvous_port=29500, facts={"vcpus": 4})
    node_changes.report_registered(session, node, arrival, node_token=f"token-{node.id}", now=rows.NOW)
    node_changes.settle_node(session, node, NodeState.READY, why="Checks passed.", now=rows.NOW)
    return node


def _job(session: Session, own: Cluster, shared: Cluster, team: str, place: int) -> Job:
    """A job on the team's own cluster, and one that holds a node of the shared one; the latter is returned."""
    rows.job(session, own, f"{team}-private", team=team)
    job = rows.job(session, shared, f"{team}-job", team=team)
    node = session.scalars(select(Node).where(Node.cluster_id == shared.id).order_by(Node.instance_id)).all()[place]
    (process,) = job_changes.settle_processes(session, job, [(node.id, 0)], now=rows.NOW)
    reports.report_process(session, process.id, ProcessState.READY, pid=4242, now=rows.NOW)
    job_changes.settle_generation(session, job, [process], cause="start", evidence_at=None, now=rows.NOW)
    logs.report_log(session, process.id, f"what {team} computes", skipped=0, now=rows.NOW)
    rows.held(session, node, rows.namespace(session, job), SAVED, [0, 1])
    return job


def _asked_by_blue(blue: Holder, arn: str, job_id: str) -> dict[str, str]:
    config = blue.sagemaker.create_cluster_scheduler_config(Name="blue-ranks", ClusterArn=arn, SchedulerConfig=SCHEDULING)
    quota = blue.sagemaker.create_compute_quota(
        Name="blue-share", ClusterArn=arn, ComputeQuotaConfig=ALLOTTED, ComputeQuotaTarget={"TeamName": "blue"}
    )
    blue.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "plan", "Value": "plan-of-blue"}])
    fault = blue.everstep.inject_fault(Kind="hang-rank", Target=f"{job_id}/0", Seconds=60)
    return {
        "fault": fault["FaultId"],
        "scheduler": config["ClusterSchedulerConfigId"],
        "scheduler_arn": config["ClusterSchedulerConfigArn"],
        "quota": quota["ComputeQuotaId"],
        "quota_arn": quota["ComputeQuotaArn"],
    }


def _found(session: Session, blue_id: str, shared_id: str, job: Job) -> dict[str, str]:
    blue, shared = session.get_one(Cluster, blue_id), session.get_one(Cluster, shared_id)
    own = session.scalars(select(Node).where(Node.cluster_id == blue_id)).one()
    _, held, free = session.scalars(select(Node).where(Node.cluster_id == shared_id).order_by(Node.instance_id))
    private = session.scalars(select(Job).where(Job.cluster_id == blue_id)).one()
    operation = session.scalars(select(Operation).where(Operation.cluster_id == blue_id)).first()
    of_node = session.scalars(select(Event).where(Event.node_id == held.id)).first()
    of_cluster = session.scalars(select(Event).where(Event.cluster_id == blue_id)).first()
    red = session.scalars(select(Cluster).where(Cluster.name == "red-cluster")).one()
    return {
        "cluster": blue.name,
        "cluster_arn": blue.arn,
        "shared": shared.name,
        "shared_arn": shared.arn,
        "red": red.name,
        "red_arn": red.arn,
        "node": str(own.instance_id),
        "logical": own.logical_id,
        "held": str(held.instance_id),
        "held_logical": held.logical_id,
        "free": str(free.instance_id),
        "mine": f"i-{1:017x}",
        "volume": VOLUME,
        "private": private.id,
        "operation": operation.id,
        "event": of_cluster.id,
        "held_event": of_node.id,
    }


def _secret(session: Session, of_blue: Cluster, job: Job) -> frozenset[str]:
    """Ids, names and words of blue: told to nobody else."""
    found: set[str | None] = {
        of_blue.id,
        of_blue.name,
        job.id,
        job.name,
        "plan-of-blue",
        "what blue computes",
        "blue-ranks",
        "blue-share",
    }
    found |= {row.id for row in session.scalars(select(InstanceGroup).where(InstanceGroup.cluster_id == of_blue.id))}
    held = select(Node).where((Node.cluster_id == of_blue.id) | (Node.instance_id == f"i-{4:017x}"))
    for node in session.scalars(held):
        found |= {node.id, node.instance_id, node.logical_id}
    found |= {row.id for row in session.scalars(select(Event).where((Event.cluster_id == of_blue.id) | (Event.job_id == job.id)))}
    return frozenset(word for word in found if word)


def everything_but(session: Session, mine: frozenset[str]) -> dict[str, set[str]]:
    """Every row of the database that is not red's own, except where a refused call may leave its trace."""
    kept = {}
    for table in metadata.sorted_tables:
        if table.name not in NEVER_ASKED:
            found = session.execute(text(f'SELECT to_jsonb(t)::text FROM "{table.name}" t')).scalars()
            kept[table.name] = {row for row in found if '"about": "Call"' not in row and not any(word in row for word in mine)}
    return kept


def resolved(template: Any, ids: dict[str, str]) -> Any:
    """A request with its placeholders (``$cluster``) replaced."""
    if isinstance(template, dict):
        return {name: resolved(value, ids) for name, value in template.items()}
    if isinstance(template, list):
        return [resolved(value, ids) for value in template]
    return re.sub(r"\$(\w+)", lambda found: ids[found[1]], template) if isinstance(template, str) else template
