"""``TieredWriter``: PyTorch's distributed checkpoints (DCP) into the tiers.

``dcp.save`` copies each tensor once, straight into its segment. ``dcp.async_save`` uses the writer as its stager, which copies there at once, and
``write_data`` finds that everything lies where it belongs. The layout travels in the shard, so the ranks gather little more than names.

What must hold: shards of different saves never make up a step. The id of the save is drawn by the coordinator, travels with the plan, is sealed
with every shard, and compared before the metadata shard, without which there is no step, is written.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import Metadata, SavePlan, SavePlanner, StorageWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import WriteResult

from everstep.checkpoint.ids import new_save_id
from everstep.checkpoint.layout import Item, Layout, aligned, room_for_digest
from everstep.checkpoint.placing import Part, Whose, copy_all, finish, write_metadata, write_shard
from everstep.checkpoint.planning import contents_of, key_of
from everstep.checkpoint.staging import Staged, shapes_of, stage
from everstep.checkpoint.tiers import Tiers, of_environment
from everstep.checkpoint.torch_parts import local_of, over
from everstep.errors import CheckpointMismatch, SaveFailed
from everstep.shards import Seal

_written: dict[Any, frozenset[str]] = {}
_drawn: dict[str, int] = {}
_drawing = threading.Lock()
_stagers = ThreadPoolExecutor(1, thread_name_prefix="everstep-stage")


class TieredWriter(StorageWriter, AsyncStager):
    """One for each save. ``durable``: the step is to reach the object store as well. ``save`` names the save, the same on all ranks.

    ``overlap``: ``dcp.async_save`` returns before the copy is made, with an ``AsyncSaveResponse``; its ``staging_completion`` must be awaited before
    anything changes the state (``optimizer.step()``), or the step holds a mixture. Without it the call returns when the copy is made.

    A save that fails raises, in words, in ``dcp.save`` or in the future of ``dcp.async_save``; the next one is not concerned.
    """

    _synchronize_after_execute = False

    def __init__(
        self, step: int, *, durable: bool = False, tiers: Tiers | None = None, save: str | None = None, overlap: bool = False
    ) -> None:
        super().__init__()
        self.step = step
        self.seal: Seal | None = None
        self._is_durable = durable
        self._tiers = tiers or of_environment()
        self._save = save
        self._overlaps = overlap
        self._rank = 0
        self._staged: Staged | None = None
        self._refusal: Exception | None = None
        self._signature: Any = None

    # ------------------------------------------------------------------------------------------------ AsyncStager

    def stage(self, state_dict: dict[str, Any]) -> Future[dict[str, Any]] | dict[str, Any]:
        """The state with copies, in the segment, for tensors. What goes wrong is raised where all ranks hear of it, in the save that follows."""
        rank, world_size = _place()
        whose = Whose(self.step, rank, self._save or "", self._is_durable)
        try:
            self._signature = (self._tiers.namespace, rank, world_size, shapes_of(state_dict))
            copying = stage(self._tiers, whose, state_dict, _written.get(self._signature), world_size)
        except Exception as error:  # noqa: BLE001  (raised here, on one rank, it would leave the others waiting for that rank's plan)
            self._refusal = error
            return state_dict
        if self._overlaps:
            return _stagers.submit(self._copied, copying, state_dict)
        return self._copied(copying, state_dict)

    def _copied(self, copying: Callable[[], Staged], state: dict[str, Any]) -> dict[str, Any]:
        try:
            self._staged = copying()
        except Exception as error:  # noqa: BLE001  (as above)
            self._refusal = error
            return state
        return self._staged.state

    def synchronize_staging(self) -> None:
        """``stage`` has copied, or its future says when."""

    def close(self) -> None:
        """Gives back what was staged and not written."""
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.shard.abandon()

    def __del__(self) -> None:
        """A save whose planning failed on another rank never comes to ``write_data``; its segment must not stay taken."""
        if getattr(self, "_staged", None) is not None:
            self.close()

    # ------------------------------------------------------------------------------------------------ StorageWriter

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Steps are numbers, not paths: DCP never chooses this writer for one."""
        del checkpoint_id
        return False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        del checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        del is_coordinator, args
        if not kwargs.get("use_collectives", True):
            message = "a step is complete when all ranks have saved their parts of one plan; leave use_collectives at True"
            raise CheckpointMismatch(message)
        self._rank = int(kwargs.get("rank") or 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._refusal is not None:
            raise self._refusal
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The coordinator names the save."""
        save = self._save or new_save_id()
        return [replace(plan, storage_data=save) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        save = self._save or _fresh(str(plan.storage_data))
        parts = [_part(item, planner.resolve_data(item)) for item in plan.items]
        try:
            self.seal = self._write_staged(parts, save) if self._staged is not None else None
            if self.seal is None:
                self.seal = write_shard(self._tiers, Whose(self.step, self._rank, save, self._is_durable), parts)
        finally:
            self.close()
        if self._signature is not None:
            _written[self._signature] = frozenset(part.name for part in parts)
        told = json.dumps([save, [[part.name, part.offsets] for part in parts]], separators=(",", ":"))
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result([WriteResult(MetadataIndex("shard", index=self._rank), self.seal.size, told)])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        told = [json.loads(of_rank[0].storage_data) for of_rank in results]
        saves = {save for save, _ in told}
        if len(saves) > 1:
            message = "the ranks took part in different saves; pass TieredWriter(save=...) the same name on all of them"
            raise CheckpointMismatch(message)
        keys = [[(name, None if offsets is None else tuple(offsets)) for name, offsets in parts] for _, parts in told]
        text = contents_of(metadata, keys).to_json()
        write_metadata(self._tiers, Whose(self.step, len(results), saves.pop(), self._is_durable), text)

    def _write_staged(self, parts: list[Part], save: str) -> Seal | None:
        """Seals the staged shard if all its tensors lie in it already and the rest has room behind them; else None, and all is copied again."""
        staged = self._staged
        if staged is None:
            return None
        if any(isinstance(part.content, Tensor) and staged.is_missing(part.content) for part in parts):
            _written.pop(self._signature, None)
            message = f"step {self.step} is not saved: the ranks divided the state otherwise than at the save before; the next save is whole"
            raise SaveFailed(message)
        layout = _layout_behind(parts, staged)
        if self._rank != _place()[0] or layout.size > len(staged.shard.body):
            return None
        for part in parts:
            start = layout.by_key[part.key].start
            if isinstance(part.content, bytes):
                staged.shard.body[start : start + part.nbytes] = part.content
            elif staged.place(part.content) is None:
                copy_all([over(staged.shard.body, start, part.content.shape, part.content.dtype)], [part.content])
        finish(staged.shard, layout)
        self._staged = None
        return staged.shard.seal(layout.size, save)


def _place() -> tuple[int, int]:
    """Rank and world size."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def _part(item: WriteItem, resolved: Tensor | io.BytesIO) -> Part:
    name, offsets = key_of(item.index)
    if isinstance(resolved, Tensor):
        return Part(name, offsets or (), local_of(resolved))
    return Part(name, None, resolved.getvalue())


def _layout_behind(parts: Sequence[Part], staged: Staged) -> Layout:
    """What lies in the staged shard already stays there; the rest goes behind it."""
    end = staged.layout.nbytes
    items: list[Item] = []
    for part in parts:
        place = staged.place(part.content) if isinstance(part.content, Tensor) else None
        if place is None:
            place, end = end, aligned(end + part.nbytes)
        items.append(Item(part.name, part.offsets, place, part.nbytes, room_for_digest(part.nbytes)))
    return Layout(tuple(sorted(items, key=lambda item: item.start)))


def _fresh(save: str) -> str:
    """A planner that caches plans hands out the save of an earlier step with them; then all ranks number on from it."""
    with _drawing:
        number = _drawn.get(save, 0)
        _drawn[save] = number + 1
    return f"{save}-{number}" if number else save
