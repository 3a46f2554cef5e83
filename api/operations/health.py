"""Use-cases of deep health checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.states import ClusterState, GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import Invalid, in_transition
from models.health import queries
from models.health.changes import Wish, request_health_check
from models.health.states import CheckKind
from models.node import queries as nodes
from models.node.states import NodeState
from models.node.table import Node


@dataclass(frozen=True)
class GroupCheck:
    """``instance_ids`` None: all nodes of the group that serve."""

    group: str
    kinds: tuple[CheckKind, ...]
    instance_ids: tuple[str, ...] | None
    wire: Mapping[str, Any]


@dataclass(frozen=True)
class CheckWish:
    cluster: str
    groups: tuple[GroupCheck, ...]


def start(work: Work, wish: CheckWish) -> str:
    """Asks that nodes are examined and returns the cluster's ARN.

    Raises:
        NotFound: no such cluster.
        InTransition: the cluster is busy, or is examined already.
        Invalid: a group or an instance does not exist, is named twice, or is not one for jobs.
    """
    cluster = clusters.find(work.session, wish.cluster, lock=True)
    if cluster.state is not ClusterState.IN_SERVICE:
        raise in_transition(kind="Cluster", name=cluster.name, state=cluster.state, verb="a deep health check")
    check_not_examined(work, cluster, verb="another one")
    present = {group.name: group for group in clusters.groups(work.session, cluster.id)}
    wishes: list[Wish] = []
    seen: set[str] = set()
    for group in wish.groups:
        if group.group in seen:
            raise Invalid(message=f"DeepHealthCheckConfigurations names instance group '{group.group}' twice.")
        seen.add(group.group)
        wishes += [Wish(node, group.kinds) for node in _nodes(work, cluster, present.get(group.group), group)]
    wishes.sort(key=lambda one: one.node.id)
    for one in wishes:
        nodes.get(work.session, one.node.id, lock=True)
    asked = [dict(group.wire) for group in wish.groups]
    request_health_check(work.session, cluster, wishes, asked=asked, now=work.now)
    return cluster.arn


def check_not_examined(work: Work, cluster: Cluster, *, verb: str) -> None:
    """Raises InTransition while somebody has the cluster's nodes examined."""
    if queries.on_demand(work.session, cluster.id) is not None:
        raise in_transition(kind="Cluster", name=cluster.name, state="running deep health checks", verb=verb)


def _nodes(work: Work, cluster: Cluster, group: InstanceGroup | None, asked: GroupCheck) -> list[Node]:
    if group is None or group.state is GroupState.DELETING:
        raise Invalid(message=f"Instance group '{asked.group}' in DeepHealthCheckConfigurations does not exist in the cluster.")
    if not queries.runs_jobs(group):
        raise Invalid(
            message=f"Instance group '{asked.group}' has no worker nodes: deep health checks are for nodes that run jobs."
        )
    live = [node for node in nodes.of_cluster(work.session, cluster.id) if node.group_id == group.id]
    if asked.instance_ids is None:
        return [node for node in live if node.state in (NodeState.READY, NodeState.SUSPECT) and node.is_wanted]
    by_instance = {str(node.instance_id): node for node in live}
    for number, instance_id in enumerate(asked.instance_ids):
        if instance_id not in by_instance:
            raise Invalid(message=f"Instance '{instance_id}' in InstanceIds is not one of instance group '{asked.group}'.")
        if instance_id in asked.instance_ids[:number]:
            raise Invalid(message=f"InstanceIds of instance group '{asked.group}' names '{instance_id}' twice.")
    return [by_instance[instance_id] for instance_id in asked.instance_ids]
