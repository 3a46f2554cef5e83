"""Goodput: the share of productive seconds in the time since jobs got nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from api.operations.work import Work
from models.cluster import queries as clusters
from models.errors import Invalid
from models.job import queries
from models.job.table import Generation, Job


@dataclass(frozen=True)
class Goodput:
    """Sums over jobs."""

    jobs: int
    productive_s: float
    wall_s: float
    steps: int
    steps_lost: int
    recoveries: int
    restarts: int
    evictions: int

    @property
    def share(self) -> float | None:
        """None before any job has had nodes."""
        return round(min(1.0, self.productive_s / self.wall_s), 4) if self.wall_s > 0 else None


def measure(work: Work, *, job_id: str | None, cluster: str | None) -> Goodput:
    """Of one job, or of all that a cluster has had.

    Raises:
        Invalid: neither is named, or both are.
        NotFound: no such job or cluster.
    """
    if (job_id is None) == (cluster is None):
        raise Invalid(message="Name a job by JobId, or a cluster by Cluster: exactly one of them.")
    if job_id is not None:
        jobs: Sequence[Job] = [queries.get(work.session, job_id)]
    else:
        jobs = queries.of_cluster(work.session, clusters.find(work.session, str(cluster)).id)
    lost = select(func.coalesce(func.sum(Generation.steps_lost), 0)).where(Generation.job_id.in_([job.id for job in jobs]))
    return Goodput(
        jobs=len(jobs),
        productive_s=sum(job.productive_s for job in jobs),
        wall_s=sum(_wall_s(job, work.now) for job in jobs),
        steps=sum(job.step for job in jobs),
        steps_lost=int(work.session.scalar(lost) or 0),
        recoveries=sum(job.recoveries for job in jobs),
        restarts=sum(job.restarts for job in jobs),
        evictions=sum(job.evictions for job in jobs),
    )


def _wall_s(job: Job, now: datetime) -> float:
    """0 before the job has had nodes."""
    return ((job.ended_at or now) - job.started_at).total_seconds() if job.started_at else 0.0
