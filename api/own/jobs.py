"""Operations of training jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from api.operations import checkpoints as operations
from api.operations import jobs
from api.operations.work import Work
from api.own import checkpoints, job_file, job_shapes
from api.own.job_file import Submission
from api.own.job_shapes import EventList, JobList, JobShape, JobStatus, JobSummary, LogList, StepList, Submitted
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, NextToken
from models.errors import AlreadyExists, Forbidden, InTransition, NamespaceTaken, NotFound
from models.job.states import JobState
from models.paging import Cut

Id = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class OneJob(Asked):
    job_id: Id


class JobsWanted(Asked):
    """Of one ``cluster``, by name or ARN, of one ``team``, in one ``status``; only those that have not ended if ``live``."""

    cluster: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    team: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    status: JobStatus | None = None
    live: bool = False
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class StepsWanted(OneJob):
    """Committed steps with a number above ``after``."""

    after: Annotated[int, Field(ge=-1, lt=2**63)] = -1
    max_results: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    next_token: NextToken = None


class EventsWanted(OneJob):
    max_results: Annotated[int, Field(ge=1, le=10_000)] = 1_000
    next_token: NextToken = None


class LogsWanted(OneJob):
    lines: Annotated[int, Field(ge=0, le=10_000)] = 1_000


class ResizeWanted(OneJob):
    """``replicas`` is one of the job's sizes: how many nodes it is to have."""

    replicas: Annotated[int, Field(ge=1, le=100_000)]


def submit(work: Work, asked: Submission) -> Submitted:
    """Submit a job. The answer states the redundancy and the worst loss. A repeated submission with the same client token returns the job of the first."""
    wish = jobs.Wish(
        name=asked.name,
        cluster=asked.cluster,
        replicas=asked.nodes,
        processes_per_node=asked.processes_per_node,
        spares=asked.standing_by,
        max_restarts=asked.max_restarts,
        instance_groups=tuple(asked.instance_groups),
        spec=asked.spec,
        team=asked.team,
        key=asked.client_token,
    )
    view = jobs.submit(work, wish)
    return Submitted(job_id=view.job.id, redundancy=job_shapes.redundancy(view.redundancy))


def listing(work: Work, asked: JobsWanted) -> JobList:
    """Jobs, newest first; of one cluster or team, in one state, or only those that have not ended, if asked."""
    cut = Cut(limit=asked.max_results, is_descending=True, cursor=asked.next_token)
    state = None if asked.status is None else JobState[asked.status.name]
    wanted = jobs.JobFilter(cluster=asked.cluster, team=asked.team, state=state, live_only=asked.live)
    found = jobs.listing(work.session, wanted, cut)
    return JobList(jobs=tuple(job_shapes.summary(view, now=work.now) for view in found.rows), next_token=found.cursor)


def show(work: Work, asked: OneJob) -> JobShape:
    """A job, with its processes, its generations with their timelines, and how it stands with its checkpoints."""
    view = jobs.show(work.session, asked.job_id)
    saved = checkpoints.saving(operations.saving(work.session, view.job), now=work.now)
    return job_shapes.full(view, saved, now=work.now)


def steps(work: Work, asked: StepsWanted) -> StepList:
    """Committed steps with a number above ``After``, in order."""
    found = jobs.steps(work.session, asked.job_id, after=asked.after, limit=asked.max_results, cursor=asked.next_token)
    return StepList(steps=tuple(job_shapes.step(row) for row in found.rows), next_token=found.cursor)


def history(work: Work, asked: EventsWanted) -> EventList:
    """What happened to a job, oldest first."""
    found = jobs.history(work.session, asked.job_id, Cut(limit=asked.max_results, cursor=asked.next_token))
    return EventList(events=tuple(job_shapes.event(row) for row in found.rows), next_token=found.cursor)


def logs(work: Work, asked: LogsWanted) -> LogList:
    """The last lines of every process; they lag by a second. The whole logs are files on the nodes."""
    view, found = jobs.output(work.session, asked.job_id)
    shapes = tuple(job_shapes.log(process, kept, view, lines=asked.lines) for process, kept in found)
    return LogList(status=JobStatus[view.job.state.name], processes=shapes)


def stop(work: Work, asked: OneJob) -> JobSummary:
    """Ask for the job's end. Asking again, or for a job that has ended, changes nothing."""
    return job_shapes.summary(jobs.stop(work.session, asked.job_id, now=work.now), now=work.now)


def resize(work: Work, asked: ResizeWanted) -> JobSummary:
    """Ask for another number of nodes, of an elastic job. It shrinks at once, and grows as soon as nodes are free and ready; training goes on meanwhile.

    The number stays the one to have until another is asked for. Asking for the present one again changes nothing.
    """
    return job_shapes.summary(jobs.resize(work.session, asked.job_id, asked.replicas, now=work.now), now=work.now)


JOBS: OwnTable = (
    Own(
        "SubmitJob",
        "POST",
        "/v1/jobs",
        Submission,
        Submitted,
        submit,
        status=201,
        errors=(NotFound, AlreadyExists, InTransition, Forbidden, NamespaceTaken),
        read=job_file.read,
        document="The job file",
    ),
    Own(
        "ListJobs",
        "GET",
        "/v1/jobs",
        JobsWanted,
        JobList,
        listing,
        page_of="jobs",
        errors=(NotFound,),
        also={"limit": "max_results"},
    ),
    Own("DescribeJob", "GET", "/v1/jobs/{job_id}", OneJob, JobShape, show, errors=(NotFound,)),
    Own(
        "ListJobSteps",
        "GET",
        "/v1/jobs/{job_id}/steps",
        StepsWanted,
        StepList,
        steps,
        page_of="steps",
        errors=(NotFound,),
        also={"limit": "max_results"},
    ),
    Own("ListJobEvents", "GET", "/v1/jobs/{job_id}/events", EventsWanted, EventList, history, page_of="events", errors=(NotFound,)),
    Own("GetJobLogs", "GET", "/v1/jobs/{job_id}/logs", LogsWanted, LogList, logs, errors=(NotFound,)),
    Own("StopJob", "POST", "/v1/jobs/{job_id}/stop", OneJob, JobSummary, stop, status=202, errors=(NotFound,)),
    Own(
        "ResizeJob",
        "POST",
        "/v1/jobs/{job_id}/resize",
        ResizeWanted,
        JobSummary,
        resize,
        status=202,
        errors=(NotFound, InTransition),
    ),
)
