"""Writes of checkpoints: what callers ask for and what workers conclude. What nodes report is in ``reports``.

Rows are locked after their job's: an export, steps by id, their copies, the namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, exists, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.checkpoint import queries
from models.checkpoint.states import COPY, EXPORT, STEP, CopyState, ExportFormat, ExportState, StepState
from models.checkpoint.table import CheckpointCopy, CheckpointExport, CheckpointNamespace, CheckpointStep
from models.errors import InTransition, Kept, NamespaceTaken
from models.events import Level
from models.ids import NodeId, new_export_id
from models.job.changes import record
from models.job.states import ENDED
from models.job.table import Job
from models.move import advance, wake
from models.node.table import Node
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify_all

FORGOTTEN_AFTER = timedelta(minutes=10)
"""How long it is remembered that copies have gone: longer than a report of them may be late."""


def request_namespace(session: Session, job: Job, name: str, *, now: datetime) -> CheckpointNamespace:
    """The new job saves in this namespace from now on. One whose job has ended passes on within its team, with all that is saved there.

    Raises:
        NamespaceTaken: a job that has not ended saves there, or it is another team's.
    """
    fresh = {
        "name": name,
        "team": job.team,
        "job_id": job.id,
        "why_step": -1,
        "told_step": -1,
        "changed_at": now,
        "created_at": now,
    }
    session.execute(insert(CheckpointNamespace).on_conflict_do_nothing(), [fresh])
    row = queries.namespace(session, name, lock=True)
    if row is None or row.team != job.team:
        raise NamespaceTaken(name=name, holder="another team")
    if row.job_id == job.id:
        return row
    holder = session.get_one(Job, row.job_id)
    if holder.state not in ENDED:
        raise NamespaceTaken(name=name, holder=f"job {holder.name} ({holder.id}), which has not ended")
    row.job_id = job.id
    _tell_nodes(session, name, now)  # they have been told that it had ended
    record(
        session, job, "namespace taken over", f"Job {job.name} goes on with the checkpoints of job {holder.name} in {name}.", now
    )
    return row


def request_pinned(session: Session, job: Job, step: CheckpointStep, *, is_pinned: bool, now: datetime) -> None:
    """A locked step is kept, and made durable, until it is unpinned. Asking again changes nothing.

    Raises:
        InTransition: it is being dropped.
    """
    if step.is_pinned == is_pinned:
        return
    if step.state is not StepState.KEPT:
        raise InTransition(kind="Checkpoint", name=step.id, state=step.state.value, verb="pinning it")
    step.is_pinned = is_pinned
    _tell_nodes(session, step.namespace, now)
    text = f"Step {step.step} of {step.namespace} was {'pinned: it is kept and made durable' if is_pinned else 'unpinned'}."
    record(session, job, "checkpoint pinned" if is_pinned else "checkpoint unpinned", text, now)
    wake(session, step, now=now)


def request_dropped(session: Session, job: Job, step: CheckpointStep, *, by: str, now: datetime) -> None:
    """A locked step is to go from every tier. Asking again changes nothing.

    Raises:
        Kept: it is pinned, or the newest step from which its live job could go on.
    """
    if step.state is not StepState.KEPT:
        return
    if step.is_pinned:
        raise Kept(name=step.id, why="it is pinned. Unpin it first.")
    row = queries.namespace(session, step.namespace, lock=True)  # nobody takes it over meanwhile
    holder = job if row is None or row.job_id == job.id else session.get_one(Job, row.job_id, populate_existing=True)
    if holder.state not in ENDED and step.step == queries.newest(session, step.namespace).step:
        why = f"it is the newest that job {holder.name} could go on from. Stop the job first, or wait for a newer one."
        raise Kept(name=step.id, why=why)
    settle_dropping(session, step, why=f"{by} asked for it.", now=now)
    record(
        session, job, "checkpoint deletion requested", f"{by} asked for the deletion of step {step.step} of {step.namespace}.", now
    )


def request_export(
    session: Session, job: Job, step: CheckpointStep, form: ExportFormat, *, target: str | None, by: str, now: datetime
) -> CheckpointExport:
    """A locked step is to be written in another format, once it is durable; the nodes are asked to see to that.

    Raises:
        InTransition: it is being dropped.
    """
    if step.state is not StepState.KEPT:
        raise InTransition(kind="Checkpoint", name=step.id, state=step.state.value, verb="exporting it")
    export = CheckpointExport(
        id=new_export_id(),
        job_id=job.id,
        namespace=step.namespace,
        step=step.step,
        format=form,
        target=target,
        state=EXPORT.initial,
        state_since=now,
        requested_by=by,
        created_at=now,
    )
    session.add(export)
    if step.durable_at is None:
        step.is_drain_wanted = True
        _tell_nodes(session, step.namespace, now)
    session.flush()
    record(session, job, "export requested", f"{by} asked for step {step.step} of {step.namespace} as {form}.", now)
    wake(session, export, now=now)
    return export


def settle_dropping(session: Session, step: CheckpointStep, *, why: str, now: datetime) -> None:
    """A locked step is no longer kept: from now on no tier tells it as one to go on from. Concluding it again changes nothing."""
    if step.state is not StepState.KEPT:
        return
    advance(STEP, step, StepState.DROPPING, now=now)
    step.why = why
    step.is_drain_wanted = False
    _tell_nodes(session, step.namespace, now)
    wake(session, step, now=now)


def settle_dropped(session: Session, step: CheckpointStep, *, now: datetime) -> None:
    """Nothing of a locked step is left in the object store. The caller has checked its lease in this transaction."""
    advance(STEP, step, StepState.DROPPED, now=now)
    step.durable_at = None
    step.durable_save = None
    step.durable_bytes = None
    step.reconcile_at = None
    session.flush()


def settle_not_durable(session: Session, step: CheckpointStep) -> None:
    """Nothing of a locked step is left in the object store, by its retention; what nodes hold of it stays. The caller has checked its lease."""
    step.durable_at = step.durable_save = step.durable_bytes = None
    session.flush()


def settle_export(
    session: Session, export: CheckpointExport, new: ExportState, *, why: str | None, now: datetime, url: str | None = None
) -> None:
    """Concludes an export's state. The caller has checked its lease in this transaction."""
    advance(EXPORT, export, new, now=now)
    export.why = why
    export.url = url or export.url
    if EXPORT.is_terminal(new):
        export.ended_at = now
        export.reconcile_at = None
        _tell_end(session, export, now)
    session.flush()


def settle_drained(session: Session, step: CheckpointStep, *, now: datetime) -> None:
    """Nobody waits any more for a locked step to become durable."""
    if step.is_drain_wanted:
        step.is_drain_wanted = False
        _tell_nodes(session, step.namespace, now)


def settle_fault_rate(session: Session, namespace: str, mtbf_s: float, *, now: datetime) -> None:
    """The mean time between faults that a job of this size has to expect: what the automatic intervals follow."""
    row = queries.namespace(session, namespace, lock=True)
    if row is not None and row.mtbf_s != mtbf_s:
        row.mtbf_s = mtbf_s
        _tell_nodes(session, namespace, now)


def settle_lost_copies(session: Session, node_id: NodeId, *, now: datetime) -> None:
    """What a locked node held in memory is gone: the node is lost, or has been started anew.

    For a namespace that has no complete step in memory any more because of that, this is said in words, with what is left.
    """
    gone = queries.sealed_on(session, node_id)
    if not gone:
        return
    names = session.scalars(
        select(CheckpointStep.namespace).where(CheckpointStep.id.in_({copy.step_id for copy in gone})).distinct()
    )
    before = {name: queries.newest(session, name) for name in sorted(names)}
    for copy in gone:
        advance(COPY, copy, CopyState.LOST, now=now)
    session.flush()
    for name, had in before.items():
        if had.in_memory is not None:
            _tell_loss(session, name, node_id, had.in_memory, now)


def settle_forgotten(session: Session, namespace: str, *, now: datetime) -> int:
    """Rows of steps that nobody holds a part of any more, and of dropped ones, go. Returns how many.

    Without this a job that saves every few seconds would leave a row for each step and copy, for ever.
    """
    is_held = exists().where(CheckpointCopy.step_id == CheckpointStep.id, CheckpointCopy.state == CopyState.SEALED)
    latest = select(func.max(CheckpointCopy.state_since)).where(CheckpointCopy.step_id == CheckpointStep.id).scalar_subquery()
    is_gone = CheckpointStep.state == StepState.DROPPED
    is_nowhere = (CheckpointStep.state == StepState.KEPT) & CheckpointStep.durable_at.is_(None) & ~CheckpointStep.is_pinned
    ripe = select(CheckpointStep.id).where(
        CheckpointStep.namespace == namespace,
        is_gone | is_nowhere,
        ~CheckpointStep.is_drain_wanted,
        ~is_held,
        func.greatest(CheckpointStep.state_since, latest) < now - FORGOTTEN_AFTER,
    )
    # Not without key locks: a report that inserts a copy of the step at this moment must find it, or make it anew.
    ids = list(session.scalars(ripe.with_for_update(skip_locked=True)))
    if ids:
        session.execute(delete(CheckpointCopy).where(CheckpointCopy.step_id.in_(ids)))
        session.execute(delete(CheckpointStep).where(CheckpointStep.id.in_(ids)))
    return len(ids)


# ----------------------------------------------------------------------------------------------------------- helpers


def _tell_nodes(session: Session, namespace: str, now: datetime) -> None:
    """What the holders of the namespace's shards are told of it has changed: their streams are to look."""
    row = queries.namespace(session, namespace, lock=True)
    if row is None:
        return
    row.changed_at = now
    session.flush()
    mine = select(CheckpointStep.id).where(CheckpointStep.namespace == namespace)
    nodes = select(CheckpointCopy.node_id).where(CheckpointCopy.state == CopyState.SEALED, CheckpointCopy.step_id.in_(mine))
    told: Sequence[NodeId] = session.scalars(nodes.distinct()).all()
    if told:
        notify_all(session, CHANNEL, told)


def _tell_end(session: Session, export: CheckpointExport, now: datetime) -> None:
    is_done = export.state is ExportState.DONE
    text = f"Step {export.step} of {export.namespace} was written as {export.format} to {export.url}."
    if not is_done:
        text = f"Step {export.step} of {export.namespace} could not be written as {export.format}: {export.why}"
    job = session.get_one(Job, export.job_id)
    record(session, job, f"export {export.state}", text, now, level=Level.INFO if is_done else Level.ERROR)


def _tell_loss(session: Session, namespace: str, node_id: NodeId, had: int, now: datetime) -> None:
    left = queries.newest(session, namespace)
    row = queries.namespace(session, namespace)
    if row is None or left.in_memory == had:
        return
    node = session.get_one(Node, node_id)
    what = f"Step {had} of {namespace} is not complete in memory any more, since {node.instance_id} is gone"
    if left.in_memory is not None:
        text, level = f"{what}; the newest one that is: step {left.in_memory}.", Level.INFO
    elif left.durable is not None:
        text, level = f"{what}, and no other step is: the newest durable one is step {left.durable}.", Level.WARN
    else:
        text, level = f"{what}, and there is no other step in any tier.", Level.WARN
    record(session, session.get_one(Job, row.job_id), "memory copies lost", text, now, level=level)
