"""``/v1/jobs``: training jobs."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from api.deps import NowDep, SessionDep, authenticated
from api.operations import jobs
from api.own import job_file, job_shapes
from api.own.job_shapes import EventList, JobList, JobShape, JobSummary, LogList, StepList, Submitted
from api.own.wire import answer, word
from everstep import documents
from models.errors import Invalid, LimitExceeded
from models.paging import Cut

_MAX_BODY = 1024 * 1024
_YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[Depends(authenticated)])


async def _job_file(request: Request) -> job_file.Submission:
    """Raises Invalid, Unsupported, LimitExceeded."""
    body = await request.body()
    if len(body) > _MAX_BODY:
        raise LimitExceeded(what="The job file", wanted=f"{len(body)} bytes", limit=f"{_MAX_BODY} bytes", remedy="Shorten it.")
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    return job_file.read(_parse(body, is_yaml=kind in _YAML))


def _parse(body: bytes, *, is_yaml: bool) -> dict[str, Any]:
    try:
        document = documents.parse(body) if is_yaml else json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise Invalid(message=f"The job file cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise Invalid(message="The job file must be an object of keys and values.")
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that comes twice is an error, as it is in YAML: the last one's value is not what everybody meant."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            message = f"the key {key!r} is there twice"
            raise ValueError(message)
        members[key] = value
    return members


JobFileDep = Annotated[job_file.Submission, Depends(_job_file)]
KeyHeader = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]
_FILE = {"schema": job_file.JobFile.model_json_schema(by_alias=False)}
_BODY = {"requestBody": {"required": True, "content": {"application/json": _FILE, "application/yaml": _FILE}}}


@router.post("", status_code=201, response_model=Submitted, openapi_extra=_BODY)
def submit(file: JobFileDep, session: SessionDep, now: NowDep, idempotency_key: KeyHeader = None) -> Response:
    """Submit a job. With an ``Idempotency-Key`` a repeated submission returns the job of the first."""
    wish = jobs.Wish(
        name=file.name,
        cluster=file.cluster,
        replicas=file.replicas,
        processes_per_node=file.processes_per_node,
        spares=file.spares,
        max_restarts=file.max_restarts,
        instance_groups=tuple(file.instance_groups),
        spec=file.spec,
        key=idempotency_key,
    )
    return answer(Submitted(job_id=jobs.submit(session, wish, now=now).id), 201)


@router.get("", response_model=JobList)
def listing(
    session: SessionDep,
    now: NowDep,
    cluster: str | None = None,
    live: bool = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    next_token: str | None = None,
) -> Response:
    """Jobs, newest first; of one cluster, or only those that have not ended, if asked."""
    cut = Cut(limit=limit, is_descending=True, cursor=_redeem(next_token))
    found = jobs.listing(session, cluster=cluster, live_only=live, cut=cut)
    shapes = tuple(job_shapes.summary(view, now=now) for view in found.rows)
    return answer(JobList(jobs=shapes, next_token=_issue(found.cursor)))


@router.get("/{job_id}", response_model=JobShape)
def show(job_id: str, session: SessionDep, now: NowDep) -> Response:
    """A job, with its processes, and its generations with their timelines."""
    return answer(job_shapes.full(jobs.show(session, job_id), jobs.generations(session, job_id), now=now))


@router.get("/{job_id}/steps", response_model=StepList)
def steps(
    job_id: str,
    session: SessionDep,
    after: Annotated[int, Query(ge=-1, lt=2**63)] = -1,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
) -> Response:
    """Committed steps with a number above ``after``, in order."""
    found = jobs.steps(session, job_id, after=after, limit=limit)
    return answer(StepList(steps=tuple(job_shapes.step(row) for row in found)))


@router.get("/{job_id}/events", response_model=EventList)
def history(job_id: str, session: SessionDep) -> Response:
    """What happened to a job, oldest first."""
    return answer(EventList(events=tuple(job_shapes.event(row) for row in jobs.history(session, job_id))))


@router.get("/{job_id}/logs", response_model=LogList)
def logs(job_id: str, session: SessionDep, lines: Annotated[int, Query(ge=0, le=10_000)] = 1_000) -> Response:
    """The last lines of every process; they lag by a second. The whole logs are files on the nodes."""
    view, found = jobs.output(session, job_id)
    shapes = tuple(job_shapes.log(process, kept, view, lines=lines) for process, kept in found)
    return answer(LogList(status=word(view.job.state), processes=shapes))


@router.post("/{job_id}/stop", status_code=202, response_model=JobSummary)
def stop(job_id: str, session: SessionDep, now: NowDep) -> Response:
    """Ask for the job's end. Asking again, or for a job that has ended, changes nothing."""
    return answer(job_shapes.summary(jobs.stop(session, job_id, now=now), now=now), 202)


def _issue(cursor: str | None) -> str | None:
    return None if cursor is None else base64.urlsafe_b64encode(cursor.encode()).decode()


def _redeem(token: str | None) -> str | None:
    """Raises Invalid."""
    try:
        return None if token is None else base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError) as error:
        raise Invalid(message="next_token was not issued by this listing.") from error
