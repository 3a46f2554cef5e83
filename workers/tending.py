"""What is done for checkpoints and spares now and then, and whose loss would harm nobody for a while. Safe to repeat, and to run twice at once."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.checkpoint.changes import settle_fault_rate, settle_forgotten
from models.checkpoint.table import CheckpointNamespace
from models.cluster import queries as clusters
from models.cluster.changes import settle_spare_pool
from models.cluster.states import GroupState
from models.cluster.table import InstanceGroup
from models.events import Event
from models.ids import ClusterId
from models.job import queries as jobs
from models.job.changes import settle_spares
from models.job.elastic import AUTO
from models.job.states import ENDED
from models.job.table import Generation, Job
from models.node.changes import settle_standby
from models.node.states import NodeState
from models.node.table import Node
from models.session import unit_of_work
from workers.plane import Plane
from workers.plans import spares as sizing
from workers.plans import stragglers
from workers.plans.fault_rate import WINDOW, Observed, estimate, faults_among, is_news

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Past:
    """Of a cluster: its faults, and what replacements took."""

    faults: Observed
    took: list[timedelta]

    def sized(self, nodes: int, *, had: int) -> sizing.Sizing:
        """The spares for so many nodes."""
        return sizing.size(estimate(self.faults, nodes).mtbf, sizing.replacement(self.took), nodes, had=had)


def forget(plane: Plane) -> int:
    """Rows of steps that are no more go. Returns how many went; a namespace that fails keeps no other one waiting."""
    with unit_of_work(plane.sessions) as session:
        names = list(session.scalars(select(CheckpointNamespace.name).order_by(CheckpointNamespace.name)))
    gone = 0
    for name in names:
        try:
            with unit_of_work(plane.sessions) as session:
                gone += settle_forgotten(session, name, now=plane.clock.now())
        except Exception:
            log.exception("namespace %s: its rows cannot be looked through now", name)
    return gone


def observe_faults(plane: Plane) -> int:
    """Tells each live job's namespace how often to expect a fault, where that has changed. Returns how many were told."""
    now = plane.clock.now()
    with unit_of_work(plane.sessions) as session:
        live = session.execute(
            select(CheckpointNamespace.name, CheckpointNamespace.mtbf_s, Job.cluster_id, Job.replicas)
            .join(Job, Job.id == CheckpointNamespace.job_id)
            .where(Job.state.not_in(ENDED))
            .order_by(CheckpointNamespace.name)
        ).all()
        observed = {cluster_id: _observed(session, cluster_id, now) for cluster_id in {row.cluster_id for row in live}}
    told = 0
    for row in live:
        found = estimate(observed[row.cluster_id], row.replicas)
        if is_news(row.mtbf_s, found):
            log.info("namespace %s: %s", row.name, found.why)
            with unit_of_work(plane.sessions) as session:
                settle_fault_rate(session, row.name, found.mtbf.total_seconds(), now=now)
            told += 1
    return told


def size_spares(plane: Plane) -> int:
    """Gives each live job that leaves it to us as many spares as its faults make worth while. Returns how many jobs now have another number."""
    now = plane.clock.now()
    with unit_of_work(plane.sessions) as session:
        wanted = select(Job.id, Job.cluster_id, Job.wish, Job.spares).where(Job.spec["spares"].astext == AUTO)
        live = session.execute(wanted.where(Job.state.not_in(ENDED)).order_by(Job.id)).all()
        seen_in = {row.cluster_id for row in live}
        past = {one: _Past(_observed(session, one, now), _replacements(session, one, now)) for one in seen_in}
    changed = 0
    for row in live:
        found = past[row.cluster_id].sized(row.wish, had=row.spares)
        if found.spares != row.spares:
            with unit_of_work(plane.sessions) as session:
                settle_spares(session, jobs.get(session, row.id, lock=True), found.spares, why=f"{found.why}.", now=now)
            changed += 1
    return changed


def size_spare_pools(plane: Plane) -> int:
    """The same for pools of groups, by the faults to be expected on all nodes that the group has. Returns how many pools now have another size."""
    now = plane.clock.now()
    with unit_of_work(plane.sessions) as session:
        wanted = select(InstanceGroup.id, InstanceGroup.cluster_id, InstanceGroup.target_count, InstanceGroup.spare_nodes)
        left_to_us = wanted.where(InstanceGroup.sizes_spares, InstanceGroup.state != GroupState.GONE).order_by(InstanceGroup.id)
        pools = session.execute(left_to_us).all()
        seen_in = {row.cluster_id for row in pools}
        past = {one: _Past(_observed(session, one, now), _replacements(session, one, now)) for one in seen_in}
    changed = 0
    for row in pools:
        found = past[row.cluster_id].sized(row.target_count, had=row.spare_nodes or 0)
        if found.spares != row.spare_nodes:
            with unit_of_work(plane.sessions) as session:
                cluster, group = clusters.get(session, row.cluster_id, lock=True), clusters.group(session, row.id)
                settle_spare_pool(session, cluster, group, found.spares, why=f"{found.why}.", now=now)
                settle_standby(session, cluster.id)
            changed += 1
    return changed


def _replacements(session: Session, cluster_id: ClusterId, now: datetime) -> list[timedelta]:
    """What nodes that were asked for within the window took until they served for the first time."""
    since, ready = now - WINDOW, Event.name == f"node {NodeState.READY}"
    served = select(Event.node_id, func.min(Event.at).label("at")).where(Event.cluster_id == cluster_id, Event.at >= since, ready)
    first = served.group_by(Event.node_id).subquery()
    rows = session.execute(
        select(Node.created_at, first.c.at)
        .join(first, first.c.node_id == Node.id)
        .where(Node.cluster_id == cluster_id, Node.created_at >= since)
    )
    return [row.at - row.created_at for row in rows]


def _observed(session: Session, cluster_id: ClusterId, now: datetime) -> Observed:
    """Faults of the cluster's jobs, and the hours that its nodes were there, within the window."""
    since = now - WINDOW
    rows = session.execute(
        select(Generation.job_id, Generation.members, Generation.cause)
        .join(Job, Job.id == Generation.job_id)
        .where(Job.cluster_id == cluster_id, Generation.decided_at >= since)
        .order_by(Generation.job_id, Generation.number)
    )
    memberships: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    chosen: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row.cause.startswith(stragglers.CAUSE):
            chosen[row.job_id].add(len(memberships[row.job_id]))
        memberships[row.job_id].append(tuple(row.members))
    nodes = session.execute(
        select(Node.launched_at, Node.state, Node.state_since).where(
            Node.cluster_id == cluster_id,
            Node.launched_at.is_not(None),
            (Node.state != NodeState.GONE) | (Node.state_since >= since),
        )
    )
    hours = 0.0
    for node in nodes:
        end = node.state_since if node.state is NodeState.GONE else now
        hours += max(0.0, (end - max(node.launched_at, since)).total_seconds()) / 3600
    return Observed(sum(faults_among(one, chosen[job]) for job, one in memberships.items()), hours)
