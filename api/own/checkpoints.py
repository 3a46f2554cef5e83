"""Operations of checkpoints."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

from api.operations import checkpoints
from api.operations.checkpoints import FullView, Saving, StepView
from api.operations.work import Work
from api.own.kinds import Own, OwnTable
from api.own.wire import Asked, ClientToken, NextToken, Wire, word
from models.checkpoint.states import CopyState, ExportFormat
from models.checkpoint.table import CheckpointCopy, CheckpointExport
from models.errors import Forbidden, InTransition, Kept, NotFound
from models.paging import Cut

Id = Annotated[str, StringConstraints(min_length=1, max_length=128)]


def _number(written: object) -> object:
    """A path holds text, where a body has to hold a number."""
    return int(written) if isinstance(written, str) and re.fullmatch(r"[0-9]{1,19}", written) else written


StepNumber = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_number)]
_OF_ONE = "/v1/jobs/{job_id}/checkpoints/{step}"


class CheckpointsWanted(Asked):
    job_id: Id
    max_results: Annotated[int, Field(ge=1, le=500)] = 100
    next_token: NextToken = None


class OneCheckpoint(Asked):
    job_id: Id
    step: StepNumber


class PinWanted(OneCheckpoint):
    pinned: bool = True


class ExportWanted(OneCheckpoint):
    """``target`` is a URL below which the export is written (``s3://`` or ``file:///``), if ``EVERSTEP_EXPORT_TO`` allows the place.

    Left out, it lies beside the checkpoints.
    """

    format: ExportFormat
    target: Annotated[str, StringConstraints(min_length=1, max_length=2048)] | None = None
    client_token: ClientToken = None


class CheckpointShape(Wire):
    """A saved step. ``status`` is Kept, Dropping while it goes, or Dropped.

    In memory: ``shards_in_memory`` of ``world_size`` data shards and one of metadata, in ``copies`` all together; it is complete there if all can be
    had. ``world_size`` and ``bytes`` are null until they are known. ``durable_at`` is when it was committed to the object store.
    """

    step: int
    status: str
    created_at: datetime
    world_size: int | None
    bytes: int | None
    is_complete_in_memory: bool
    shards_in_memory: int
    copies: int
    is_pinned: bool
    durable_at: datetime | None
    why: str | None


class HolderShape(Wire):
    """A node that holds, or held, a copy; ``status`` is Sealed, Dropped, Corrupt or Lost."""

    node_id: str
    instance_id: str | None
    status: str


class ShardShape(Wire):
    """``kind`` is Data or Metadata; ``digest`` is xxh3_128 of its bytes, null where the holders disagree or none is left."""

    index: int
    kind: str | None
    bytes: int | None
    digest: str | None
    holders: tuple[HolderShape, ...]


class ExportShape(Wire):
    """``status`` is one of Wanted (until the step is durable), Running, Done and Failed; ``url`` is where it lies once it is done."""

    export_id: str
    step: int
    format: ExportFormat
    status: str
    target: str | None
    url: str | None
    why: str | None
    requested_by: str
    created_at: datetime
    ended_at: datetime | None


class CheckpointFullShape(CheckpointShape):
    """With who holds each shard in memory, and with its exports."""

    namespace: str
    save: str
    durable_bytes: int | None
    shards: tuple[ShardShape, ...]
    exports: tuple[ExportShape, ...]


class CheckpointList(Wire):
    checkpoints: tuple[CheckpointShape, ...]
    next_token: str | None


class SavingShape(Wire):
    """How a job stands with its checkpoints: the newest complete step in each tier, how old the last durable one is, and what saves cost.

    ``memory_every`` and ``durable_every`` are the intervals in force, in steps; ``why`` explains them. ``stall_s`` is what the newest save kept training
    waiting, ``save_s`` how long it took. All null until they are known.
    """

    namespace: str
    newest_in_memory: int | None
    newest_durable: int | None
    durable_at: datetime | None
    age_of_last_durable_step_s: float | None
    memory_every: int | None
    durable_every: int | None
    why: str | None
    stall_s: float | None
    save_s: float | None
    mtbf_s: float | None


def listing(work: Work, asked: CheckpointsWanted) -> CheckpointList:
    """A job's saved steps, newest first, and in which tiers each of them is."""
    cut = Cut(limit=asked.max_results, is_descending=True, cursor=asked.next_token)
    found = checkpoints.listing(work.session, asked.job_id, cut)
    return CheckpointList(checkpoints=tuple(_shape(view) for view in found.rows), next_token=found.cursor)


def show(work: Work, asked: OneCheckpoint) -> CheckpointFullShape:
    """A saved step: which nodes hold each of its shards, whether it is durable, and what was exported of it."""
    return _full(checkpoints.show(work.session, asked.job_id, asked.step))


def delete(work: Work, asked: OneCheckpoint) -> CheckpointShape:
    """Delete a saved step from every tier. A pinned one is kept, and so is the newest that a live job could go on from."""
    return _shape(checkpoints.delete(work, asked.job_id, asked.step))


def pin(work: Work, asked: PinWanted) -> CheckpointShape:
    """Pin a saved step, or unpin it. A pinned one is made durable, and kept whatever the retention says."""
    return _shape(checkpoints.pin(work, asked.job_id, asked.step, is_pinned=asked.pinned))


def export(work: Work, asked: ExportWanted) -> ExportShape:
    """Write a saved step in another format: dcp, as torch.distributed.checkpoint reads it, or safetensors, with whole tensors."""
    return _export(checkpoints.export(work, asked.job_id, asked.step, asked.format, target=asked.target))


def saving(told: Saving, *, now: datetime) -> SavingShape:
    row = told.row
    age_s = checkpoints.age_s(told.newest, now)
    return SavingShape(
        namespace=told.namespace,
        newest_in_memory=told.newest.in_memory,
        newest_durable=told.newest.durable,
        durable_at=told.newest.durable_at,
        age_of_last_durable_step_s=None if age_s is None else round(age_s, 3),
        memory_every=row.memory_every if row else None,
        durable_every=row.durable_every if row else None,
        why=row.why if row else None,
        stall_s=row.stall_s if row else None,
        save_s=row.seconds if row else None,
        mtbf_s=row.mtbf_s if row else None,
    )


def _shape(view: StepView) -> CheckpointShape:
    return CheckpointShape(**_common(view))


def _common(view: StepView) -> dict[str, Any]:
    row, held = view.row, view.held
    size = held.world_size if held.world_size is not None else row.world_size
    return {
        "step": row.step,
        "status": word(row.state),
        "created_at": row.written_at,
        "world_size": size,
        "bytes": held.nbytes if held.is_complete else row.durable_bytes,
        "is_complete_in_memory": held.is_complete,
        "shards_in_memory": held.shards,
        "copies": held.copies,
        "is_pinned": row.is_pinned,
        "durable_at": row.durable_at,
        "why": row.why,
    }


def _full(view: FullView) -> CheckpointFullShape:
    row = view.step.row
    indices = sorted({copy.index for copy in view.copies})
    return CheckpointFullShape(
        **_common(view.step),
        namespace=row.namespace,
        save=row.save,
        durable_bytes=row.durable_bytes,
        shards=tuple(_shard(index, view) for index in indices),
        exports=tuple(_export(row) for row in view.exports),
    )


def _shard(index: int, view: FullView) -> ShardShape:
    copies = [copy for copy in view.copies if copy.index == index]
    held = [copy for copy in copies if copy.state is CopyState.SEALED]
    digests = {copy.digest for copy in held}
    size = view.step.held.world_size
    return ShardShape(
        index=index,
        kind=None if size is None else "Metadata" if index == size else "Data",
        bytes=held[0].nbytes if held else None,
        digest=digests.pop() if len(digests) == 1 else None,
        holders=tuple(sorted((_holder(copy, view) for copy in copies), key=lambda one: (one.instance_id or "", one.node_id))),
    )


def _holder(copy: CheckpointCopy, view: FullView) -> HolderShape:
    return HolderShape(node_id=copy.node_id, instance_id=view.instances.get(copy.node_id), status=word(copy.state))


def _export(row: CheckpointExport) -> ExportShape:
    return ExportShape(
        export_id=row.id,
        step=row.step,
        format=row.format,
        status=word(row.state),
        target=row.target,
        url=row.url,
        why=row.why,
        requested_by=row.requested_by,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


CHECKPOINTS: OwnTable = (
    Own(
        "ListJobCheckpoints",
        "GET",
        "/v1/jobs/{job_id}/checkpoints",
        CheckpointsWanted,
        CheckpointList,
        listing,
        page_of="checkpoints",
        errors=(NotFound,),
        also={"limit": "max_results"},
    ),
    Own("DescribeJobCheckpoint", "GET", _OF_ONE, OneCheckpoint, CheckpointFullShape, show, errors=(NotFound,)),
    Own("DeleteJobCheckpoint", "DELETE", _OF_ONE, OneCheckpoint, CheckpointShape, delete, status=202, errors=(NotFound, Kept)),
    Own("PinJobCheckpoint", "POST", f"{_OF_ONE}/pin", PinWanted, CheckpointShape, pin, errors=(NotFound, InTransition)),
    Own(
        "ExportJobCheckpoint",
        "POST",
        f"{_OF_ONE}/exports",
        ExportWanted,
        ExportShape,
        export,
        status=202,
        errors=(NotFound, InTransition, Forbidden),
        remembers=True,
    ),
)
