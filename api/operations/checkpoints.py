"""Use-cases of checkpoints: look, pin, delete, export. Wire-free; every function is one transaction of the caller's session.

A job's checkpoints are those of the namespace that its file names, whichever job saves there by now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.operations.export_targets import check_target
from api.operations.work import Work
from models.checkpoint import changes, queries
from models.checkpoint.policy import policy_of
from models.checkpoint.queries import NOTHING, InMemory, Newest
from models.checkpoint.states import ExportFormat, StepState
from models.checkpoint.table import CheckpointCopy, CheckpointExport, CheckpointNamespace, CheckpointStep
from models.errors import Invalid, NotFound
from models.ids import checkpoint_id
from models.job import queries as jobs
from models.job.table import Job
from models.node.table import Node
from models.paging import Cut, Page


@dataclass(frozen=True)
class StepView:
    row: CheckpointStep
    held: InMemory

    @property
    def is_complete(self) -> bool:
        return self.held.is_complete or self.row.durable_at is not None


@dataclass(frozen=True)
class FullView:
    """A step with the copies of its shards, and its exports. ``instances`` maps the nodes that the caller sees to their instances."""

    step: StepView
    copies: tuple[CheckpointCopy, ...]
    exports: tuple[CheckpointExport, ...]
    instances: Mapping[str, str]


@dataclass(frozen=True)
class Saving:
    """How a job stands with its checkpoints: the newest steps to go on from, and what it has told of its saves. ``row`` is None before it has any."""

    namespace: str
    row: CheckpointNamespace | None
    newest: Newest


def listing(session: Session, job_id: str, cut: Cut) -> Page[StepView]:
    """Steps of the job's namespace that are not dropped. Raises NotFound."""
    found = queries.listed(session, namespace_of(jobs.get(session, job_id)), cut)
    return Page(tuple(_views(session, found.rows)), found.cursor)


def show(session: Session, job_id: str, step: int) -> FullView:
    """Raises NotFound."""
    row = queries.get(session, namespace_of(jobs.get(session, job_id)), step)
    copies = tuple(queries.copies(session, row.id, row.save))
    nodes = session.execute(select(Node.id, Node.instance_id).where(Node.id.in_({copy.node_id for copy in copies})))
    instances = {node.id: node.instance_id for node in nodes if node.instance_id is not None}
    return FullView(_views(session, [row])[0], copies, tuple(queries.exports(session, row.namespace, step)), instances)


def saving(session: Session, job: Job) -> Saving:
    name = namespace_of(job)
    return Saving(name, queries.namespace(session, name), queries.newest(session, name))


def pin(work: Work, job_id: str, step: int, *, is_pinned: bool) -> StepView:
    """Keeps a step and has it made durable, or lets it go again.

    Raises:
        NotFound: no such job, or no such step.
        InTransition: it is being dropped.
        Invalid: it is to be pinned, and is not complete in any tier.
    """
    job, row = _locked(work, job_id, step)
    view = _views(work.session, [row])[0]
    if is_pinned:
        _check_complete(view)
    changes.request_pinned(work.session, job, row, is_pinned=is_pinned, now=work.now)
    return view


def delete(work: Work, job_id: str, step: int) -> StepView:
    """Asks for the end of a step in every tier.

    Raises:
        NotFound: no such job, or no such step.
        Kept: it is pinned, or the newest one that a live job could go on from.
    """
    job, row = _locked(work, job_id, step)
    changes.request_dropped(work.session, job, row, by=work.caller.name, now=work.now)
    return _views(work.session, [row])[0]


def export(work: Work, job_id: str, step: int, form: ExportFormat, *, target: str | None) -> CheckpointExport:
    """Asks for a step in another format.

    Raises:
        NotFound: no such job, or no such step.
        InTransition: it is being dropped.
        Invalid: it is not complete in any tier, or the target is no URL that can be written to.
        Forbidden: the target is not below one of the places that this installation allows, or the caller is bound to a team.
    """
    if target is not None:
        check_target(target, work.limits.export_to, team=work.caller.team)
    job, row = _locked(work, job_id, step)
    _check_complete(_views(work.session, [row])[0])
    return changes.request_export(work.session, job, row, form, target=target, by=work.caller.name, now=work.now)


def namespace_of(job: Job) -> str:
    return policy_of(job.spec, job.id).namespace


def _locked(work: Work, job_id: str, step: int) -> tuple[Job, CheckpointStep]:
    """The job and its step, locked in this order."""
    job = jobs.get(work.session, job_id, lock=True)
    row = queries.find(work.session, namespace_of(job), step, lock=True)
    if row is None:
        raise NotFound(kind="Checkpoint", name=checkpoint_id(namespace_of(job), step))
    return job, row


def _check_complete(view: StepView) -> None:
    """Whether there is something of it to keep. That one is being dropped is another matter, which ``changes`` refuses in words of its own."""
    if view.row.state is StepState.KEPT and not view.is_complete:
        held, size = view.held.shards, view.held.world_size
        of = f"{held} of {size + 1}" if size is not None else f"{held}"
        raise Invalid(message=f"Checkpoint {view.row.id} is not complete in any tier: nodes hold {of} of its shards.")


def _views(session: Session, rows: Sequence[CheckpointStep]) -> list[StepView]:
    held = queries.in_memory(session, [row.id for row in rows])
    return [StepView(row, held.get(row.id, NOTHING)) for row in rows]


def age_s(newest: Newest, now: datetime) -> float | None:
    """Of the last durable step, in seconds since it was committed; None without one."""
    return None if newest.durable_at is None else max(0.0, (now - newest.durable_at).total_seconds())
