"""Reads of checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Row, Select, exists, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from models.checkpoint.states import CopyState, ExportState, StepState
from models.checkpoint.table import CheckpointCopy, CheckpointExport, CheckpointNamespace, CheckpointStep, MemoryTier
from models.errors import NotFound
from models.ids import NodeId, checkpoint_id
from models.job.states import ENDED
from models.job.table import Job
from models.paging import Cut, Page, page
from models.session import locked


@dataclass(frozen=True)
class InMemory:
    """What nodes hold of the youngest save of a step. ``nbytes`` counts each shard once, ``copies`` every copy."""

    world_size: int | None
    shards: int
    copies: int
    nbytes: int

    @property
    def is_complete(self) -> bool:
        return self.world_size is not None and self.shards == self.world_size + 1


NOTHING = InMemory(None, 0, 0, 0)


@dataclass(frozen=True)
class Newest:
    """The newest steps of a namespace from which training could go on; None where there is none."""

    in_memory: int | None
    durable: int | None
    durable_at: datetime | None

    @property
    def step(self) -> int | None:
        return max((step for step in (self.in_memory, self.durable) if step is not None), default=None)


# ----------------------------------------------------------------------------------------------------------- namespaces


def namespace(session: Session, name: str, *, lock: bool = False) -> CheckpointNamespace | None:
    wanted = select(CheckpointNamespace).where(CheckpointNamespace.name == name)
    return session.scalars(locked(wanted) if lock else wanted).one_or_none()


def of_job(session: Session, job_id: str) -> CheckpointNamespace | None:
    """The namespace in which the job saves, or was the last to."""
    wanted = select(CheckpointNamespace).where(CheckpointNamespace.job_id == job_id)
    return session.scalars(wanted.order_by(CheckpointNamespace.name).limit(1)).one_or_none()


def is_live(session: Session, name: str) -> bool:
    """Whether a job that has not ended saves in the namespace."""
    wanted = select(Job.id).join(CheckpointNamespace, CheckpointNamespace.job_id == Job.id)
    return session.scalar(wanted.where(CheckpointNamespace.name == name, Job.state.not_in(ENDED))) is not None


def holds(session: Session, node_id: str, namespace: str) -> bool:
    """Whether a node holds a copy of the namespace's shards."""
    wanted = select(CheckpointStep.id).join(CheckpointCopy, CheckpointCopy.step_id == CheckpointStep.id)
    held = (CheckpointCopy.node_id == node_id, CheckpointCopy.state == CopyState.SEALED, CheckpointStep.namespace == namespace)
    return session.scalar(wanted.where(*held).limit(1)) is not None


def held_by(session: Session, node_id: str) -> list[str]:
    """Namespaces of which a node holds copies."""
    wanted = select(CheckpointStep.namespace).join(CheckpointCopy, CheckpointCopy.step_id == CheckpointStep.id)
    wanted = wanted.where(CheckpointCopy.node_id == node_id, CheckpointCopy.state == CopyState.SEALED).distinct()
    return list(session.scalars(wanted.order_by(CheckpointStep.namespace)))


# ----------------------------------------------------------------------------------------------------------- steps


def get(session: Session, namespace: str, step: int, *, lock: bool = False) -> CheckpointStep:
    """Raises NotFound."""
    row = find(session, namespace, step, lock=lock)
    if row is None:
        raise NotFound(kind="Checkpoint", name=checkpoint_id(namespace, step))
    return row


def find(session: Session, namespace: str, step: int, *, lock: bool = False) -> CheckpointStep | None:
    wanted = select(CheckpointStep).where(CheckpointStep.id == checkpoint_id(namespace, step))
    return session.scalars(locked(wanted) if lock else wanted).one_or_none()


def listed(session: Session, namespace: str, cut: Cut) -> Page[CheckpointStep]:
    """Steps of which there is something, or is to be. What memory has let go of is not listed, though it is remembered for a while."""
    is_held = exists().where(CheckpointCopy.step_id == CheckpointStep.id, CheckpointCopy.state == CopyState.SEALED)
    is_there = is_held | CheckpointStep.durable_at.is_not(None) | CheckpointStep.is_pinned | CheckpointStep.is_drain_wanted
    wanted = select(CheckpointStep).where(
        CheckpointStep.namespace == namespace,
        CheckpointStep.state != StepState.DROPPED,
        is_there | (CheckpointStep.state == StepState.DROPPING),
    )
    return page(session, wanted, (CheckpointStep.step, CheckpointStep.id), lambda row: (row.step, row.id), cut)


def steps(session: Session, namespace: str, *, in_state: Collection[StepState], durable_only: bool = False) -> list[CheckpointStep]:
    """A namespace's steps, newest first."""
    wanted = select(CheckpointStep).where(CheckpointStep.namespace == namespace, CheckpointStep.state.in_(in_state))
    if durable_only:
        wanted = wanted.where(CheckpointStep.durable_at.is_not(None))
    return list(session.scalars(wanted.order_by(CheckpointStep.step.desc())))


def in_memory(session: Session, step_ids: Collection[str]) -> dict[str, InMemory]:
    """What nodes hold of these steps, by their ids. Steps of which they hold nothing are left out."""
    return {row.id: _in_memory(row) for row in session.execute(_held(CheckpointStep.id.in_(step_ids)))}


def newest(session: Session, namespace: str, *, on: Collection[NodeId] | None = None) -> Newest:
    """The newest complete steps of a namespace, of those that are kept; with ``on`` only what these nodes hold in memory counts."""
    kept = (CheckpointStep.namespace == namespace, CheckpointStep.state == StepState.KEPT)
    held = session.execute(_held(*kept, on=on).order_by(CheckpointStep.step.desc()))
    complete = next((row.step for row in held if _in_memory(row).is_complete), None)
    durable = select(CheckpointStep.step, CheckpointStep.durable_at).where(*kept, CheckpointStep.durable_at.is_not(None))
    found = session.execute(durable.order_by(CheckpointStep.step.desc()).limit(1)).one_or_none()
    return Newest(complete, *(found or (None, None)))


def newest_durable(session: Session, namespaces: Collection[str]) -> dict[str, tuple[int, datetime]]:
    """Of each of these namespaces that has one: its newest durable step, and when that was committed."""
    wanted = select(CheckpointStep.namespace, CheckpointStep.step, CheckpointStep.durable_at).where(
        CheckpointStep.namespace.in_(namespaces), CheckpointStep.state == StepState.KEPT, CheckpointStep.durable_at.is_not(None)
    )
    first = wanted.ext(distinct_on(CheckpointStep.namespace)).order_by(CheckpointStep.namespace, CheckpointStep.step.desc())
    return {row.namespace: (row.step, row.durable_at) for row in session.execute(first) if row.durable_at is not None}


def _held(*of: ColumnElement[bool], on: Collection[NodeId] | None = None) -> Select[tuple[str, int, int | None, int, int, int]]:
    """The sealed copies, counted, of the youngest save of each step ``of`` which this is true; with ``on`` those on these nodes.

    ``of`` stands inside as well: the database does not carry it into what is grouped, and would count every copy that there is.
    """
    where: list[ColumnElement[bool]] = [*of, CheckpointCopy.state == CopyState.SEALED, CheckpointCopy.save == CheckpointStep.save]
    if on is not None:
        where.append(CheckpointCopy.node_id.in_(on))
    one = (
        select(
            CheckpointCopy.step_id,
            CheckpointCopy.index,
            func.max(CheckpointCopy.world_size).label("world_size"),
            func.count().label("copies"),
            func.max(CheckpointCopy.nbytes).label("nbytes"),
        )
        .join(CheckpointStep, CheckpointStep.id == CheckpointCopy.step_id)
        .where(*where)
        .group_by(CheckpointCopy.step_id, CheckpointCopy.index)
        .subquery()
    )
    return (
        select(
            CheckpointStep.id,
            CheckpointStep.step,
            func.coalesce(func.max(one.c.world_size), CheckpointStep.world_size).label("world_size"),
            func.count().label("shards"),
            func.sum(one.c.copies).label("copies"),
            func.sum(one.c.nbytes).label("nbytes"),
        )
        .join(one, one.c.step_id == CheckpointStep.id)
        .group_by(CheckpointStep.id)
    )


def _in_memory(row: Row[tuple[str, int, int | None, int, int, int]]) -> InMemory:
    return InMemory(row.world_size, int(row.shards), int(row.copies), int(row.nbytes))


# ----------------------------------------------------------------------------------------------------------- copies


def copies(session: Session, step_id: str, save: str) -> list[CheckpointCopy]:
    """The copies of one save of a step by index, then by node."""
    wanted = select(CheckpointCopy).where(CheckpointCopy.step_id == step_id, CheckpointCopy.save == save)
    return list(session.scalars(wanted.order_by(CheckpointCopy.index, CheckpointCopy.node_id)))


def copies_on(session: Session, step_id: str, save: str, node_id: NodeId) -> list[CheckpointCopy]:
    """Those of one node, locked."""
    wanted = select(CheckpointCopy).where(
        CheckpointCopy.step_id == step_id, CheckpointCopy.save == save, CheckpointCopy.node_id == node_id
    )
    return list(session.scalars(locked(wanted.order_by(CheckpointCopy.index))))


def sealed_on(session: Session, node_id: NodeId) -> list[CheckpointCopy]:
    """The copies that a node holds, locked."""
    wanted = select(CheckpointCopy).where(CheckpointCopy.node_id == node_id, CheckpointCopy.state == CopyState.SEALED)
    return list(session.scalars(locked(wanted.order_by(CheckpointCopy.step_id, CheckpointCopy.index))))


def holders(session: Session, step_ids: Iterable[str]) -> list[NodeId]:
    """Nodes that hold a copy of a shard of one of these steps."""
    wanted = select(CheckpointCopy.node_id).where(
        CheckpointCopy.step_id.in_(list(step_ids)), CheckpointCopy.state == CopyState.SEALED
    )
    return list(session.scalars(wanted.distinct().order_by(CheckpointCopy.node_id)))


# ----------------------------------------------------------------------------------------------------------- tiers and exports


def tier(session: Session, node_id: NodeId, *, lock: bool = False) -> MemoryTier | None:
    wanted = select(MemoryTier).where(MemoryTier.node_id == node_id)
    return session.scalars(locked(wanted) if lock else wanted).one_or_none()


def export(session: Session, export_id: str, *, lock: bool = False) -> CheckpointExport:
    """Raises NotFound."""
    wanted = select(CheckpointExport).where(CheckpointExport.id == export_id)
    row = session.scalars(locked(wanted) if lock else wanted).one_or_none()
    if row is None:
        raise NotFound(kind="Export", name=export_id)
    return row


def exports(session: Session, namespace: str, step: int | None = None, *, live_only: bool = False) -> Sequence[CheckpointExport]:
    """A namespace's exports, oldest first; with ``step`` those of one step."""
    wanted = select(CheckpointExport).where(CheckpointExport.namespace == namespace)
    if step is not None:
        wanted = wanted.where(CheckpointExport.step == step)
    if live_only:
        wanted = wanted.where(CheckpointExport.state.in_((ExportState.WANTED, ExportState.RUNNING)))
    return session.scalars(wanted.order_by(CheckpointExport.created_at, CheckpointExport.id)).all()
