"""What is done for checkpoints and spares now and then, and whose loss would harm nobody for a while. Safe to repeat, and to run twice at once."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.checkpoint.changes import settle_fault_rate, settle_forgotten
from models.checkpoint.table import CheckpointNamespace
from models.ids import ClusterId
from models.job import queries as jobs
from models.job.changes import settle_spares
from models.job.states import ENDED
from models.job.table import Generation, Job
from models.node.states import NodeState
from models.node.table import Node
from models.session import unit_of_work
from workers.plane import Plane
from workers.plans import spares as sizing
from workers.plans.fault_rate import WINDOW, Observed, estimate, faults_among, is_news

log = logging.getLogger(__name__)


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
        wanted = session.scalars(select(Job).where(Job.state.not_in(ENDED)).order_by(Job.id))
        live = [(job.id, job.cluster_id, job.wish, job.spares) for job in wanted if job.spec.get("spares") == "auto"]
        clusters = {cluster_id for _, cluster_id, _, _ in live}
        observed = {one: (_observed(session, one, now), _replacements(session, one)) for one in clusters}
    changed = 0
    for job_id, cluster_id, nodes, spares in live:
        faults, took = observed[cluster_id]
        found = sizing.size(estimate(faults, nodes).mtbf, sizing.replacement(took), nodes, had=spares)
        if found.spares != spares:
            with unit_of_work(plane.sessions) as session:
                settle_spares(session, jobs.get(session, job_id, lock=True), found.spares, why=f"{found.why}.", now=now)
            changed += 1
    return changed


def _replacements(session: Session, cluster_id: ClusterId) -> list[timedelta]:
    """What nodes that are ready took from being wanted to that; one that was suspected meanwhile counts up to its acquittal."""
    rows = session.execute(
        select(Node.created_at, Node.state_since).where(Node.cluster_id == cluster_id, Node.state == NodeState.READY)
    )
    return [row.state_since - row.created_at for row in rows]


def _observed(session: Session, cluster_id: ClusterId, now: datetime) -> Observed:
    """Faults of the cluster's jobs, and the hours that its nodes were there, within the window."""
    since = now - WINDOW
    rows = session.execute(
        select(Generation.job_id, Generation.members)
        .join(Job, Job.id == Generation.job_id)
        .where(Job.cluster_id == cluster_id, Generation.decided_at >= since)
        .order_by(Generation.job_id, Generation.number)
    )
    memberships: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for row in rows:
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
    return Observed(sum(faults_among(one) for one in memberships.values()), hours)
