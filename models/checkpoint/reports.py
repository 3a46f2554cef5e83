"""What nodes report of checkpoints. Facts only.

Every report may come twice, late, or after one that was told later: of two words on one thing the one with the later time counts, and the rows end
the same whatever the order (tests/models/checkpoint/test_report_orders.py). A report of a namespace that no job of the node's cluster holds is ignored:
clients that name no job may use a node's memory, and are nobody's here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from everstep.tiers import CopyStatus
from models import events
from models.checkpoint import queries
from models.checkpoint.states import COPY, STEP, CopyState, StepState
from models.checkpoint.table import CheckpointCopy, CheckpointNamespace, CheckpointStep, MemoryTier
from models.events import About, Event, Level
from models.ids import CheckpointId, ClusterId, JobId, checkpoint_id
from models.job.changes import record
from models.job.table import Job
from models.move import advance, wake
from models.node import changes as nodes
from models.node.states import SERVING, NodeState
from models.node.table import Node
from models.notify import DIRECTIVE as CHANNEL
from models.notify import notify
from models.session import locked

_STATES: Mapping[CopyStatus, CopyState] = {
    CopyStatus.SEALED: CopyState.SEALED,
    CopyStatus.DROPPED: CopyState.DROPPED,
    CopyStatus.CORRUPT: CopyState.CORRUPT,
}
_LATER = {state: place for place, state in enumerate((CopyState.SEALED, CopyState.DROPPED, CopyState.CORRUPT, CopyState.LOST))}
"""Of two words of the same moment, what is further on in a copy's life counts."""
_FAILED = "not saved: "
"""So a process's word on a save begins that has failed (``everstep.checkpoint.saving``)."""
_NOT_SAVED = "checkpoint not saved"
_QUIET = timedelta(minutes=1)
"""A job whose saves fail says so this often: it tries again at its next step, many times a second where steps are short."""
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_TELLS = frozenset(set(SERVING) | {NodeState.CHECKING, NodeState.DRAINING, NodeState.DETACHING})
"""The states in which a node's word on what it holds counts. Of others all copies are lost, or about to be."""


@dataclass(frozen=True)
class Copy:
    """One shard of the step that a node tells of."""

    index: int
    status: CopyStatus
    nbytes: int
    digest: str


@dataclass(frozen=True)
class Held:
    """What a node tells of its copies of one step; ``written_at`` is when the youngest of them was sealed, ``at`` when this was told."""

    namespace: str
    step: int
    save: str
    world_size: int | None
    copies: Sequence[Copy]
    written_at: datetime
    at: datetime


@dataclass(frozen=True)
class Durable:
    """A step was committed to the object store at ``at``, or, withdrawn, its manifest was put aside."""

    namespace: str
    step: int
    save: str
    world_size: int
    nbytes: int
    is_withdrawn: bool
    at: datetime


@dataclass(frozen=True)
class Tier:
    """How a node's memory tier is, as it told at ``at``."""

    plan: int
    allocated_bytes: int
    used_bytes: int
    backlog_bytes: int
    waiting_since: datetime | None
    outage: str | None
    refusals: int
    note: str | None
    at: datetime


@dataclass(frozen=True)
class Saved:
    """What a save has cost, and the intervals in force after it. ``why`` explains them if they have changed."""

    step: int
    stall_s: float
    seconds: float
    nbytes: int
    memory_every: int | None
    durable_every: int | None
    why: str | None


def report_steps(session: Session, cluster_id: ClusterId, told: Sequence[Held | Durable], *, now: datetime) -> None:
    """That these steps are told of: makes and locks those that the reports will change, in one order, before the first is taken in.

    Without this two nodes that tell of the same steps in another order wait for each other, and whoever asks for a step waits for both. A step that is known
    as what is told of it is only kept from being removed, which many do at once: a save of a thousand nodes would else be taken in by one after the other, and
    a step that was removed after this look would be made anew out of order.
    """
    names = {one.namespace for one in told}
    owned = set(
        session.scalars(
            select(CheckpointNamespace.name)
            .join(Job, Job.id == CheckpointNamespace.job_id)
            .where(CheckpointNamespace.name.in_(names), Job.cluster_id == cluster_id)
        )
    )
    known = _kept(session, [one for one in told if one.namespace in owned], now)
    changed = [
        checkpoint_id(one.namespace, one.step)
        for one in told
        if (row := known.get(checkpoint_id(one.namespace, one.step))) is not None and _changes(one, row)
    ]
    if changed:
        session.scalars(locked(select(CheckpointStep).where(CheckpointStep.id.in_(changed)).order_by(CheckpointStep.id))).all()


def _kept(session: Session, told: Sequence[Held | Durable], now: datetime) -> dict[CheckpointId, CheckpointStep]:
    """The steps that are told of, made if need be, and held so that nobody removes them before this transaction ends."""
    if not told:
        return {}
    ids = {checkpoint_id(one.namespace, one.step) for one in told}
    makers = {checkpoint_id(one.namespace, one.step): one for one in told if _makes_a_step(one)}
    fresh = {id_: _fresh(one.namespace, one.step, one.save, _NEVER, now) for id_, one in sorted(makers.items())}
    wanted = select(CheckpointStep).where(CheckpointStep.id.in_(ids)).order_by(CheckpointStep.id)
    while True:
        if fresh:
            session.execute(insert(CheckpointStep).values([*fresh.values()]).on_conflict_do_nothing())
        known = {row.id: row for row in session.scalars(wanted.with_for_update(read=True, key_share=True))}
        if fresh.keys() <= known.keys():
            return known


def report_copies(session: Session, node: Node, held: Held, *, now: datetime) -> None:
    """What has become of a locked node's copies of one save of a step. That copies are gone of which nobody knew is no news."""
    owner = _owner(session, node.cluster_id, held.namespace)
    if owner is None or node.state not in _TELLS or not held.copies:
        return
    is_held = any(told.status is CopyStatus.SEALED for told in held.copies)
    if not is_held and queries.find(session, held.namespace, held.step) is None:
        return
    is_new_here = is_held and not queries.holds(session, node.id, held.namespace)
    step_id = _step(session, held.namespace, held.step, held.save, held.written_at if is_held else _NEVER, now)
    known = {copy.index: copy for copy in queries.copies_on(session, step_id, held.save, node.id)}
    for told in held.copies:
        if _take(session, node, known.get(told.index), step_id, held, told, now) and told.status is CopyStatus.CORRUPT:
            _tell_corrupt(session, owner, node, held, told.index, now)
    session.flush()
    if is_held:
        _note_save(session, step_id, held.save, held.written_at, now)
    if is_new_here:
        notify(session, CHANNEL, node.id)  # its plan names the namespace from now on
    _note_world_size(session, step_id)


def report_durable(session: Session, cluster_id: ClusterId, told: Durable, *, now: datetime) -> None:
    """A step has been committed to the object store, or its commit has been taken back. Its reconciler looks at what is kept there."""
    if _owner(session, cluster_id, told.namespace) is None:
        return
    _step(session, told.namespace, told.step, told.save, told.at, now)
    step = queries.get(session, told.namespace, told.step, lock=True)
    if step.durable_told_at is not None and (told.at, told.is_withdrawn) <= (step.durable_told_at, step.durable_at is None):
        return
    step.durable_told_at = told.at
    if told.is_withdrawn:
        step.durable_at = step.durable_save = step.durable_bytes = None
    else:
        step.durable_at, step.durable_save, step.durable_bytes = told.at, told.save, told.nbytes
        step.is_drain_wanted = False
        step.world_size = step.world_size or told.world_size
        if step.state is StepState.DROPPED:
            advance(STEP, step, StepState.DROPPING, now=now)
    wake(session, step, now=now)


def report_tier(session: Session, node: Node, told: Tier, *, now: datetime) -> None:
    """How the memory tier of a locked node is."""
    row = queries.tier(session, node.id, lock=True)
    if row is not None and told.at <= row.at:
        return
    was_out = row.outage if row is not None else None
    refused = told.refusals - (row.refusals if row is not None else 0)
    if row is None:
        row = MemoryTier(node_id=node.id)
        session.add(row)
    row.plan, row.allocated_bytes, row.used_bytes = told.plan, told.allocated_bytes, told.used_bytes
    row.backlog_bytes, row.waiting_since = told.backlog_bytes, told.waiting_since
    row.outage, row.refusals, row.note, row.at = told.outage, told.refusals, told.note, told.at
    if (told.outage is None) != (was_out is None):
        row.outage_since = told.at if told.outage is not None else None
        _tell_outage(session, node, told, now)
    if told.note:
        nodes.record(session, node, "memory tier", told.note, now)
    if refused > 0:
        text = f"The memory tier of {node.instance_id} had no room for {refused} shard{'s' if refused > 1 else ''}."
        nodes.record(session, node, "memory tier full", text, now, level=Level.WARN)
    session.flush()


def report_saved(session: Session, job: Job, told: Saved, *, now: datetime) -> None:
    """What a save of a locked job has cost. The newest step's word on cost and intervals counts, and the newest explanation.

    One that has failed has cost nothing that counts: it is told, and changes nothing.
    """
    if told.why is not None and told.why.startswith(_FAILED):
        _tell_failed(session, job, told.why.removeprefix(_FAILED), now)
        return
    name = queries.of_job(session, job.id)
    row = queries.namespace(session, name.name, lock=True) if name is not None else None
    if row is None:
        return
    if told.step > row.told_step:
        row.told_step, row.told_at = told.step, now
        row.stall_s, row.seconds, row.nbytes = told.stall_s, told.seconds, told.nbytes
        row.memory_every, row.durable_every = told.memory_every, told.durable_every
    if told.why is not None and told.step > row.why_step:
        row.why, row.why_step = told.why, told.step
        record(session, job, "checkpoint interval", told.why, now)
    session.flush()


# ----------------------------------------------------------------------------------------------------------- helpers


def _owner(session: Session, cluster_id: ClusterId, namespace: str) -> Job | None:
    """The job that a namespace belongs to, if it is one of this cluster, or has it from one whose shards the cluster's nodes still hold."""
    wanted = select(Job).join(CheckpointNamespace, CheckpointNamespace.job_id == Job.id)
    job = session.scalars(wanted.where(CheckpointNamespace.name == namespace)).one_or_none()
    if job is None or job.cluster_id == cluster_id:
        return job
    held = select(CheckpointCopy.step_id).join(CheckpointStep, CheckpointStep.id == CheckpointCopy.step_id)
    held = held.join(Node, Node.id == CheckpointCopy.node_id).where(Node.cluster_id == cluster_id)
    is_held = session.scalar(held.where(CheckpointStep.namespace == namespace).limit(1)) is not None
    return job if is_held else None


def _step(session: Session, namespace: str, step: int, save: str, written_at: datetime, now: datetime) -> CheckpointId:
    """The step's row, made if there is none, and held so that nobody removes it before this transaction ends."""
    step_id = checkpoint_id(namespace, step)
    fresh = _fresh(namespace, step, save, written_at, now)
    present = select(CheckpointStep.id).where(CheckpointStep.id == step_id).with_for_update(read=True, key_share=True)
    while session.scalar(present) is None:
        add = insert(CheckpointStep).on_conflict_do_nothing()
        session.execute(add.values(fresh))
    return step_id


def _fresh(namespace: str, step: int, save: str, written_at: datetime, now: datetime) -> dict[str, Any]:
    return {
        "id": checkpoint_id(namespace, step),
        "namespace": namespace,
        "step": step,
        "state": STEP.initial,
        "state_since": now,
        "save": save,
        "written_at": written_at,
        "is_pinned": False,
        "is_drain_wanted": False,
        "created_at": now,
        "fence": 0,
        "attempts": 0,
    }


def _makes_a_step(told: Held | Durable) -> bool:
    return isinstance(told, Durable) or any(copy.status is CopyStatus.SEALED for copy in told.copies)


def _changes(told: Held | Durable, row: CheckpointStep) -> bool:
    """Whether a report may change the step's own row. It grows with each word, so that what changes nothing now changes nothing later."""
    is_newer = isinstance(told, Held) and (told.written_at, told.save) > (row.written_at, row.save)
    return isinstance(told, Durable) or is_newer or row.world_size is None


def _take(
    session: Session, node: Node, copy: CheckpointCopy | None, step_id: CheckpointId, held: Held, told: Copy, now: datetime
) -> bool:
    """Whether that was news."""
    if copy is None:
        session.add(_first(step_id, node, held, told, now))
        return True
    new = _STATES[told.status]
    if not _is_news(copy, new, held.at):
        return False
    copy.at = held.at
    if copy.state is not new:
        advance(COPY, copy, new, now=now)
    if new is CopyState.SEALED:
        copy.nbytes, copy.digest, copy.world_size = told.nbytes, told.digest, held.world_size or copy.world_size
    return True


def _first(step_id: CheckpointId, node: Node, held: Held, told: Copy, now: datetime) -> CheckpointCopy:
    return CheckpointCopy(
        step_id=step_id,
        index=told.index,
        node_id=node.id,
        state=_STATES[told.status],
        state_since=now,
        save=held.save,
        world_size=held.world_size,
        nbytes=told.nbytes,
        digest=told.digest,
        at=held.at,
    )


def _is_news(copy: CheckpointCopy, new: CopyState, at: datetime) -> bool:
    return (at, _LATER[new]) > (copy.at, _LATER[copy.state])


def _note_save(session: Session, step_id: CheckpointId, save: str, written_at: datetime, now: datetime) -> None:
    """Of a step that was saved more than once, the youngest save counts. One that is newer than what was dropped is kept again."""
    row = session.get_one(CheckpointStep, step_id)
    if (written_at, save) <= (row.written_at, row.save):
        return
    row = queries.get(session, row.namespace, row.step, lock=True)
    if (written_at, save) <= (row.written_at, row.save):
        return
    if row.save != save:
        row.world_size = None
        if row.state is not StepState.KEPT:
            advance(STEP, row, StepState.KEPT, now=now)
            row.why = None
    row.save, row.written_at = save, written_at
    session.flush()


def _note_world_size(session: Session, step_id: CheckpointId) -> None:
    row = session.get_one(CheckpointStep, step_id)
    if row.world_size is None:
        told = select(func.max(CheckpointCopy.world_size)).where(CheckpointCopy.step_id == step_id, CheckpointCopy.save == row.save)
        row.world_size = session.scalar(told)
        session.flush()


def _tell_corrupt(session: Session, owner: Job, node: Node, held: Held, index: int, now: datetime) -> None:
    text = f"The copy of shard {index} of step {held.step} of {held.namespace} on {node.instance_id} did not match its checksum; it was given up."
    events.record(
        session,
        "copy corrupt",
        text,
        about=About.JOB,
        level=Level.ERROR,
        cluster_id=owner.cluster_id,
        job_id=JobId(owner.id),
        node_id=node.id,
        instance_id=node.instance_id,
        details={"namespace": held.namespace, "step": held.step, "index": index},
        now=now,
    )


def _tell_failed(session: Session, job: Job, why: str, now: datetime) -> None:
    told = select(Event.at).where(Event.job_id == job.id, Event.name == _NOT_SAVED).order_by(Event.sequence.desc()).limit(1)
    last = session.scalar(told)
    if last is None or now - last >= _QUIET:
        record(session, job, _NOT_SAVED, f"{why[:1].upper()}{why[1:].rstrip('.')}.", now, level=Level.WARN)


def _tell_outage(session: Session, node: Node, told: Tier, now: datetime) -> None:
    if told.outage is None:
        text = (
            f"The object store can be reached from {node.instance_id} again; {told.backlog_bytes} bytes wait to be written there."
        )
        nodes.record(session, node, "object store reached again", text, now)
        return
    text = f"{node.instance_id} cannot reach the object store: {told.outage.rstrip('.')}. Training goes on; what is saved waits in memory."
    nodes.record(session, node, "object store out", text, now, level=Level.WARN)
