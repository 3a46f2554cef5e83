"""Goodput: where the time of jobs' accelerators went, and how much of it was productive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from api.operations import jobs
from api.operations.jobs import JobView
from api.operations.work import Work
from models.cluster import queries as clusters
from models.errors import Invalid
from models.job import queries
from models.job.ledger import Books
from models.job.table import Job


@dataclass(frozen=True)
class Goodput:
    """Sums over jobs. ``wall_s`` is the time since each first had nodes, ``submitted_s`` since it was submitted."""

    jobs: int
    books: Books
    productive_s: float
    wall_s: float
    submitted_s: float
    steps: int
    steps_lost: int
    recoveries: int
    restarts: int
    evictions: int

    @property
    def share(self) -> float | None:
        """None before any job has had nodes."""
        return None if self.books.goodput is None else round(self.books.goodput, 4)

    @property
    def ettr(self) -> float | None:
        """The productive share of the time since the jobs were submitted, waiting in the queue included."""
        return round(self.books.productive_elapsed / 1e6 / self.submitted_s, 4) if self.submitted_s > 0 else None


def measure(work: Work, *, job_id: str | None = None, cluster: str | None = None, team: str | None = None) -> Goodput:
    """Of one job, or of all that a cluster or a team has had.

    Raises:
        Invalid: none of them is named, or more than one.
        NotFound: no such job or cluster.
    """
    if sum(one is not None for one in (job_id, cluster, team)) != 1:
        raise Invalid(message="Name a job by JobId, a cluster by Cluster, or a team by Team: exactly one of them.")
    views = jobs.views(work.session, _jobs(work, job_id, cluster, team))
    return Goodput(
        jobs=len(views),
        books=sum((view.books(work.now) for view in views), Books()),
        productive_s=sum(view.job.productive_s for view in views),
        wall_s=sum(_since(work, view, view.job.started_at) for view in views),
        submitted_s=sum(_since(work, view, view.job.created_at) for view in views),
        steps=sum(view.job.step for view in views),
        steps_lost=sum(generation.steps_lost for view in views for generation in view.generations),
        recoveries=sum(view.job.recoveries for view in views),
        restarts=sum(view.job.restarts for view in views),
        evictions=sum(view.job.evictions for view in views),
    )


def _jobs(work: Work, job_id: str | None, cluster: str | None, team: str | None) -> Sequence[Job]:
    if job_id is not None:
        return [queries.get(work.session, job_id)]
    if cluster is not None:
        return queries.of_cluster(work.session, clusters.find(work.session, cluster).id)
    return work.session.scalars(select(Job).where(Job.team == team).order_by(Job.created_at, Job.id)).all()


def _since(work: Work, view: JobView, began: datetime | None) -> float:
    """Seconds; 0 for what has not begun."""
    return max(0.0, ((view.job.ended_at or work.now) - began).total_seconds()) if began is not None else 0.0
