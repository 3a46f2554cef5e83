"""Use-cases of jobs: submit, look, stop. Wire-free; every function is one transaction of the caller's session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.operations import redundancy
from api.operations.redundancy import Redundancy, Told
from api.operations.tiers import percent_of
from api.operations.work import Work
from models.catalogue import accelerators
from models.checkpoint import changes as checkpoints
from models.checkpoint.policy import policy_of
from models.cluster import queries as clusters
from models.cluster.states import ClusterState
from models.cluster.table import Cluster
from models.errors import AlreadyExists, Forbidden, Invalid, in_transition
from models.events import Event
from models.job import accounts, changes, logs, queries
from models.job.changes import JobSpec
from models.job.elastic import elastic_of, told
from models.job.ledger import Books
from models.job.plain import is_plain
from models.job.states import ENDED, JobState
from models.job.stragglers import TELL
from models.job.table import Generation, Job, JobProcess, ProcessLog, Step
from models.node.table import Node
from models.paging import Cut, Page, page
from models.session import ACROSS_TEAMS

KEY = "idempotency_key"
"""Where a submission's key lies in its job's ``spec``. It is no key of a job file, and is not shown."""
_UNSAID: Final[dict[str, Any]] = {"stragglers": TELL}
"""What a job means by keys of job files that were not there yet when it was accepted."""


@dataclass(frozen=True)
class Wish:
    """A job as it is submitted. ``spec`` is the job file with its defaults; ``key`` makes a repeated submission the same one.

    ``team`` is whose job it is to be; left out, it is the caller's team's.
    """

    name: str
    cluster: str
    replicas: int
    processes_per_node: int
    spares: int
    max_restarts: int
    instance_groups: tuple[str, ...]
    spec: Mapping[str, Any]
    team: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a listing shows; None does not bound."""

    cluster: str | None = None
    team: str | None = None
    state: JobState | None = None
    live_only: bool = False


@dataclass(frozen=True)
class JobView:
    """A job and the names that people know its cluster and nodes by.

    ``instances`` maps a node's id to its instance's, ``weights`` to how many accelerators it has, 1 where there are none; ``has_tier``: its cluster's
    nodes keep checkpoints in memory.
    """

    job: Job
    cluster: str
    generations: tuple[Generation, ...]
    processes: tuple[JobProcess, ...]
    instances: Mapping[str, str]
    weights: Mapping[str, int]
    has_tier: bool

    @property
    def generation(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    @property
    def redundancy(self) -> Redundancy:
        return redundancy.of_job(
            self.job.spec,
            replicas=self.job.replicas,
            processes=self.job.processes_per_node,
            told=self._told(),
            has_tier=self.has_tier,
        )

    def books(self, now: datetime) -> Books:
        """Where the time of its accelerators went until now."""
        return accounts.books(self.job, self.processes, self.generations, self.weights, now=now)

    def goodput(self, now: datetime) -> float | None:
        """None before there was any node, and for a script that has told no step: nobody knows."""
        if is_plain(self.job.spec) and not self.job.step:
            return None
        found = self.books(now).goodput
        return None if found is None else round(found, 4)

    def _told(self) -> Told | None:
        """What the ranks say; the least of them counts."""
        reports = list(self.generation.reports.values()) if self.generation is not None else []
        told = [report for report in reports if report.get("copies") is not None]
        if self.generation is None or not told:
            return None
        nodes = {process.node_id for process in self.processes if process.id in self.generation.members}
        return Told(min(one["copies"] for one in told), max(one["worst_loss"] for one in told), len(nodes))


def submit(work: Work, wish: Wish) -> JobView:
    """Puts a job into its cluster's queue; see ``_submit``."""
    return views(work.session, [_submit(work, wish)])[0]


def _submit(work: Work, wish: Wish) -> Job:
    """Puts a job into its cluster's queue; with a key that was used for the same wish before, returns that job.

    Raises:
        Forbidden: the job is to be another team's than the caller's.
        NotFound: no such cluster.
        InTransition: the cluster is being deleted.
        Invalid: an instance group that the cluster does not have, or a key that was used for another wish.
        AlreadyExists: a job of this name has not ended in the cluster.
        NamespaceTaken: another job that has not ended saves its checkpoints in the namespace, or it is another team's.
    """
    session = work.session
    cluster = clusters.find(session, wish.cluster)
    wish = _of_team(wish, cluster, work.caller.team)
    before = _submitted(session, cluster, wish)
    if before is not None:
        return before
    if cluster.state is ClusterState.DELETING:
        raise in_transition(kind="Cluster", name=cluster.name, state="Deleting", verb="running a job")
    _check_groups(session, cluster, wish)
    spec = dict(wish.spec) | ({KEY: wish.key} if wish.key else {})
    asked = JobSpec(
        name=wish.name,
        cluster_id=cluster.id,
        replicas=wish.replicas,
        processes_per_node=wish.processes_per_node,
        spares=wish.spares,
        max_restarts=wish.max_restarts,
        spec=spec,
        team=wish.team,
    )
    try:
        job = changes.request_job(session, asked, now=work.now)
    except AlreadyExists:
        before = _submitted(session, cluster, wish)  # the same submission, a moment ago
        if before is None:
            raise
        return before
    checkpoints.request_namespace(session, job, policy_of(job.spec, job.id).namespace, now=work.now)
    return job


def show(session: Session, job_id: str) -> JobView:
    """Raises NotFound."""
    return views(session, [queries.get(session, job_id)])[0]


def listing(session: Session, which: JobFilter, cut: Cut) -> Page[JobView]:
    """Jobs in the order of their submission. Raises NotFound for a cluster that does not exist, Invalid for a cursor that is none."""
    wanted = select(Job)
    if which.cluster is not None:
        wanted = wanted.where(Job.cluster_id == clusters.find(session, which.cluster).id)
    equals = {Job.team: which.team, Job.state: which.state}
    wanted = wanted.where(*(column == value for column, value in equals.items() if value is not None))
    if which.live_only:
        wanted = wanted.where(Job.state.not_in(ENDED))
    found = page(session, wanted, (Job.created_at, Job.id), lambda job: (job.created_at, job.id), cut)
    return Page(tuple(views(session, found.rows)), found.cursor)


def steps(session: Session, job_id: str, *, after: int, limit: int, cursor: str | None) -> Page[Step]:
    """Committed steps with a number above ``after``, in order. Raises NotFound."""
    first = after if cursor is None else max(after, int(cursor))
    found = tuple(queries.steps(session, queries.get(session, job_id).id, after=first, limit=limit + 1))
    return Page(found[:limit], str(found[limit - 1].number) if len(found) > limit else None)


def history(session: Session, job_id: str, cut: Cut) -> Page[Event]:
    """What happened to a job, oldest first. Raises NotFound."""
    wanted = select(Event).where(Event.job_id == queries.get(session, job_id).id)
    return page(session, wanted, (Event.sequence, Event.id), lambda event: (event.sequence, event.id), cut)


def output(session: Session, job_id: str) -> tuple[JobView, Sequence[tuple[JobProcess, ProcessLog | None]]]:
    """The last lines of every process. Raises NotFound."""
    return show(session, job_id), logs.of_job(session, job_id)


def stop(session: Session, job_id: str, *, now: datetime) -> JobView:
    """Asks for the job's end; changes nothing for one that has ended. Raises NotFound."""
    changes.request_stop(session, queries.get(session, job_id, lock=True), now=now)
    return show(session, job_id)


def resize(session: Session, job_id: str, replicas: int, *, now: datetime) -> JobView:
    """Asks for another number of nodes.

    Raises:
        NotFound: no such job.
        InTransition: it has ended, or is being stopped.
        Invalid: the job is not elastic, or the number is none of its sizes.
    """
    job = queries.get(session, job_id, lock=True)
    policy = elastic_of(job.spec)
    if policy is None:
        raise Invalid(
            message=f"Job {job.id} has one size, {job.replicas} nodes: only a job whose file has a block 'elastic' can be resized."
        )
    if job.state in ENDED or job.stop_requested:
        state = "stopping" if job.state not in ENDED else job.state.value
        raise in_transition(kind="Job", name=job.id, state=state.capitalize(), verb="resizing")
    if replicas not in policy.sizes:
        raise Invalid(
            message=f"replicas: {replicas} is none of the job's sizes, which are {told(policy.sizes)}; choose one of them."
        )
    changes.request_resize(session, job, replicas, now=now)
    return show(session, job_id)


def _of_team(wish: Wish, cluster: Cluster, bound: str | None) -> Wish:
    """The wish with the team whose job it is: the one that it names, else the caller's, else the cluster's. Raises Forbidden, Invalid."""
    if bound is not None and wish.team not in (None, bound):
        raise Forbidden(message=f"team: the caller is bound to team '{bound}' and cannot submit a job of team '{wish.team}'.")
    team = wish.team or bound or cluster.team
    if cluster.team not in (None, team):
        raise Invalid(message=f"team: cluster {cluster.name} belongs to team '{cluster.team}', which runs no jobs of others.")
    return replace(wish, team=team, spec=dict(wish.spec) | {"team": team})


def _submitted(session: Session, cluster: Cluster, wish: Wish) -> Job | None:
    """The job that this key was used for. Raises Invalid if that was another wish."""
    if wish.key is None:
        return None
    wanted = select(Job).where(Job.cluster_id == cluster.id, Job.spec[KEY].astext == wish.key)
    job = session.scalars(wanted.order_by(Job.created_at.desc()).limit(1)).one_or_none()
    if job is not None and _UNSAID | {name: value for name, value in job.spec.items() if name != KEY} != _UNSAID | dict(wish.spec):
        raise Invalid(message=f"The idempotency key was used for another job ({job.id}); use a new one.")
    return job


def _check_groups(session: Session, cluster: Cluster, wish: Wish) -> None:
    known = [group.name for group in clusters.groups(session, cluster.id)]
    for name in wish.instance_groups:
        if name not in known:
            there = ", ".join(known) or "none"
            raise Invalid(message=f"instance_groups: cluster {cluster.name} has no group '{name}'; its groups are: {there}.")


def views(session: Session, jobs: Sequence[Job]) -> list[JobView]:
    """All that a listing shows of its jobs, in four queries however many they are."""
    ids = [job.id for job in jobs]
    rows = session.execute(select(Cluster).where(Cluster.id.in_({job.cluster_id for job in jobs}))).scalars()
    clusters_of = {row.id: row for row in rows}
    generations_of: dict[str, list[Generation]] = {id_: [] for id_ in ids}
    for generation in session.scalars(select(Generation).where(Generation.job_id.in_(ids)).order_by(Generation.number)):
        generations_of[generation.job_id].append(generation)
    of_jobs = select(JobProcess).where(JobProcess.job_id.in_(ids)).order_by(JobProcess.created_at, JobProcess.id)
    processes_of: dict[str, list[JobProcess]] = {id_: [] for id_ in ids}
    for process in session.scalars(of_jobs):
        processes_of[process.job_id].append(process)
    # A node may work for another team by now, and be hidden: that a process of this job has been there is the job's own past.
    on = {process.node_id for processes in processes_of.values() for process in processes}
    wanted = select(Node.id, Node.instance_id, Node.instance_type).where(Node.id.in_(on))
    nodes = session.execute(wanted.execution_options(**{ACROSS_TEAMS: True})).all()
    instances = {row.id: row.instance_id or row.id for row in nodes}
    weights = {row.id: max(1, accelerators(row.instance_type)) for row in nodes}
    return [
        JobView(
            job=job,
            cluster=clusters_of[job.cluster_id].name,
            generations=tuple(generations_of[job.id]),
            processes=tuple(processes_of[job.id]),
            instances=instances,
            weights=weights,
            has_tier=percent_of(clusters_of[job.cluster_id]) is not None,
        )
        for job in jobs
    ]
