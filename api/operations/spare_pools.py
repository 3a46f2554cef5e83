"""Use-cases of spare pools: free nodes of a group that are kept for what is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from api.operations.work import Work
from models.cluster import queries as clusters
from models.cluster.changes import request_spare_pool
from models.cluster.states import GroupState
from models.cluster.table import Cluster, InstanceGroup
from models.errors import Invalid
from models.job import queries as jobs
from models.job.table import Job
from models.node import queries as nodes
from models.node.changes import settle_standby
from models.node.states import NodeState
from models.notify import nudge


@dataclass(frozen=True)
class Pool:
    """``nodes`` are to be kept free, ``free`` of them are there now."""

    group: str
    nodes: int
    is_sized: bool
    free: int


def put(work: Work, cluster: str, group: str | None, count: int | None, *, is_sized: bool) -> Pool:
    """Sets how many nodes are kept free, or leaves it to the planner if ``is_sized``. The group need not be named where there is one only.

    Raises:
        NotFound: no such cluster.
        Invalid: no such group, several and none named, more nodes than it has, or not just one of a count and ``is_sized``.
        Forbidden: a cluster that the caller may not change.
    """
    row = clusters.find(work.session, cluster, lock=True)
    chosen = _chosen(work, row, group)
    if (count is None) is not is_sized:
        raise Invalid(message="Nodes: give a number of nodes, or Auto, and not both.")
    if count is not None and count > chosen.target_count:
        raise Invalid(message=f"Nodes: group '{chosen.name}' has {chosen.target_count} nodes; it cannot keep {count} of them free.")
    request_spare_pool(work.session, row, chosen, count, now=work.now)
    settle_standby(work.session, row.id)
    for job in jobs.of_cluster(work.session, row.id, live_only=True):
        nudge(work.session, Job.KIND, job.id)
    return next(one for one in _pools(work, row) if one.group == chosen.name)


def of_cluster(work: Work, cluster: str) -> list[Pool]:
    """Those of every group, in the order of the groups. Raises NotFound."""
    return _pools(work, clusters.find(work.session, cluster))


def _chosen(work: Work, cluster: Cluster, name: str | None) -> InstanceGroup:
    groups = {one.name: one for one in clusters.groups(work.session, cluster.id) if one.state is not GroupState.DELETING}
    there = ", ".join(sorted(groups)) or "none"
    if name is None and len(groups) != 1:
        raise Invalid(message=f"InstanceGroup: say which; the groups of cluster {cluster.name} are: {there}.")
    if name is not None and name not in groups:
        raise Invalid(message=f"InstanceGroup: cluster {cluster.name} has no group '{name}'; its groups are: {there}.")
    return groups[name] if name is not None else next(iter(groups.values()))


def _pools(work: Work, cluster: Cluster) -> list[Pool]:
    busy = jobs.busy_nodes(work.session, cluster.id)
    present = nodes.of_cluster(work.session, cluster.id)
    free = Counter(
        node.group_name
        for node in present
        if node.state is NodeState.READY and node.is_wanted and node.takes_work and node.id not in busy
    )
    found = clusters.groups(work.session, cluster.id)
    kept = {one.name: one.spare_nodes or 0 for one in found}
    return [Pool(one.name, kept[one.name], one.sizes_spares, min(free[one.name], kept[one.name])) for one in found]
