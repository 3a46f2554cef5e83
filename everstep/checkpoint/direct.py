"""Saving and loading of DCP state dictionaries without DCP's collectives: the same shards, which ``TieredReader`` and ``TieredWriter`` read and write.

DCP plans anew at every save, and gathers and scatters the plans: seconds at thousands of tensors. Here the plan is made once, by DCP's own planner,
and kept for as long as names, shapes, types and the world stay the same on all ranks.

The collectives of a save, in order, on the group: 1, has anything changed on any rank (one number). Only if so: 2, plans to rank 0; 3, plans and the
name of the save from rank 0. All are made in the call, never on another thread. A failure after them concerns this rank alone: the step is then
never complete, and never told of.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from everstep.checkpoint.ids import new_save_id
from everstep.checkpoint.layout import Key, Layout
from everstep.checkpoint.leaves import flattened, plain
from everstep.checkpoint.placing import Part, Whose, fill, fill_early, finish, layout_of, open_shard, write_metadata
from everstep.checkpoint.planning import contents_of, key_of
from everstep.checkpoint.reader import TieredReader
from everstep.checkpoint.tiers import OpenShard, Tiers, of_environment
from everstep.checkpoint.torch_parts import device_of
from everstep.errors import CheckpointMismatch
from everstep.shards import Seal

_savers = ThreadPoolExecutor(1, thread_name_prefix="everstep-save")


@dataclass(frozen=True)
class Saving:
    """A save under way. ``staged``: the state may be changed again. ``sealed``: this rank's shard; it raises what went wrong, in words."""

    staged: Future[None]
    sealed: Future[Seal]


def save(
    state: Mapping[str, Any],
    step: int,
    *,
    durable: bool = False,
    tiers: Tiers | None = None,
    name: str | None = None,
    group: dist.ProcessGroup | None = None,
) -> Seal:
    """Saves this rank's part of the state; all ranks of the group call it. ``name``: of the save, the same on all ranks, never used before.

    Returns when this rank's shard is sealed. Raises SaveRefused, SaveFailed.
    """
    prepared = _prepared(state, step, durable, tiers or of_environment(), name, group)
    prepared.copy()
    return prepared.seal()


def async_save(
    state: Mapping[str, Any],
    step: int,
    *,
    durable: bool = False,
    tiers: Tiers | None = None,
    name: str | None = None,
    group: dist.ProcessGroup | None = None,
    is_steady: Callable[[Tensor], bool] | None = None,
) -> Saving:
    """As ``save``, but copies and seals on a thread: await ``staged`` before anything changes a tensor of the state.

    A forward changes buffers (batch norm). ``is_steady`` says which tensors stay as they are until ``staged``: all others are copied in the call.

    Raises SaveRefused if there is no room.
    """
    prepared = _prepared(state, step, durable, tiers or of_environment(), name, group)
    if is_steady is not None:
        prepared.copy_early(is_steady)
    staged = _savers.submit(prepared.copy)
    return Saving(staged, _savers.submit(prepared.sealed_after, staged))


def load(
    state: dict[str, Any],
    step: int | None = None,
    *,
    verify: bool = True,
    mapped: bool = False,
    tiers: Tiers | None = None,
    group: dist.ProcessGroup | None = None,
) -> int | None:
    """Loads into the tensors of ``state``, in place, and replaces its other values. Returns the step, None if there is no checkpoint.

    As ``dcp.load`` with ``TieredReader``, whose arguments these are, but no rank waits for another's plan. Raises CheckpointUnreadable.
    """
    reader = TieredReader(step, verify=verify, mapped=mapped, tiers=tiers, process_group=group)
    if reader.step is None:
        return None
    whole = plain(state)
    planner = DefaultLoadPlanner()
    planner.set_up_planner(whole, reader.read_metadata(), True)
    plan = planner.create_global_plan([planner.create_local_plan()])[0]
    reader.read_data(planner.finish_plan(plan), planner).wait()
    for key, value in whole.items():
        if value is not state[key] and isinstance(state[key], Stateful):
            state[key].load_state_dict(value)
        else:
            state[key] = value
    return reader.step


# ---------------------------------------------------------------------------------------------------------------- plans


@dataclass
class _Plan:
    """What this rank writes, in the order of its shard: tensors, then bytes. ``contents``: the metadata shard, on rank 0."""

    group: dist.ProcessGroup | None
    signature: tuple[Any, ...]
    tensors: tuple[Key, ...]
    objects: tuple[Key, ...]
    contents: bytes | None
    base: str
    saves: int = 0
    layout: Layout | None = None


_plans: dict[tuple[str, bool], _Plan] = {}


@dataclass
class _Prepared:
    tiers: Tiers
    whose: Whose
    plan: _Plan
    parts: list[Part]
    layout: Layout
    world_size: int
    shard: OpenShard
    early: frozenset[Key] = frozenset()

    def copy_early(self, is_steady: Callable[[Tensor], bool]) -> None:
        with self._given_back_if_it_fails():
            self.early = fill_early(self.shard, self.parts, self.layout, is_steady)

    def copy(self) -> None:
        """Reads the state, for the last time."""
        with self._given_back_if_it_fails():
            fill(self.shard, self.parts, self.layout, (self.plan.base, self.plan.tensors), without=self.early)

    def seal(self) -> Seal:
        with self._given_back_if_it_fails():
            finish(self.shard, self.layout)
        seal = self.shard.seal(self.layout.size)
        if self.plan.contents is not None:
            whose = Whose(self.whose.step, self.world_size, self.whose.save, self.whose.is_durable)
            write_metadata(self.tiers, whose, self.plan.contents)
        return seal

    def sealed_after(self, staged: Future[None]) -> Seal:
        staged.result()
        return self.seal()

    @contextmanager
    def _given_back_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.shard.abandon()
            raise


def _prepared(
    state: Mapping[str, Any], step: int, is_durable: bool, tiers: Tiers, name: str | None, group: dist.ProcessGroup | None
) -> _Prepared:
    """Everything up to the copy: the plan, a place for the shard. Raises SaveRefused."""
    whole = plain(state)
    flat = flattened(whole)
    rank, world_size = _place(group)
    plan = _plan(tiers.namespace, whole, flat, group, rank, world_size)
    plan.saves += 1
    parts = [Part(key[0], key[1], _local(flat[key[0]])) for key in plan.tensors]
    parts += [Part(key[0], None, _saved(flat[key[0]])) for key in plan.objects]
    layout = _layout(plan, parts)
    whose = Whose(step, rank, name or f"{plan.base}-{plan.saves}", is_durable)
    return _Prepared(tiers, whose, plan, parts, layout, world_size, open_shard(tiers, whose, layout.size))


def _plan(
    namespace: str, state: dict[str, Any], flat: Mapping[str, Any], group: dist.ProcessGroup | None, rank: int, world_size: int
) -> _Plan:
    """The plan of the save before, if it fits on every rank; else a new one. Collectives 1, 2 and 3."""
    process_group = (group or dist.distributed_c10d._get_default_group()) if world_size > 1 else None  # noqa: SLF001
    signature = (rank, world_size, *_signature(flat))
    known = _plans.get((namespace, group is None))
    fits = known is not None and known.group is process_group and known.signature == signature
    if known is None or not _on_every_rank(fits, process_group):
        known = _planned(state, process_group, signature, rank, world_size)
        _plans[namespace, group is None] = known
    return known


def _planned(
    state: dict[str, Any], group: dist.ProcessGroup | None, signature: tuple[Any, ...], rank: int, world_size: int
) -> _Plan:
    """By DCP's own planner: what several ranks hold is divided among them. Collectives 2 and 3. Raises CheckpointMismatch, on all ranks."""
    planner = DefaultSavePlanner()
    gathered = _gathered(_local_plan(planner, state, is_coordinator=rank == 0), group, rank, world_size)
    answers, contents = ([], None) if gathered is None else _divided(planner, gathered)
    mine = _scattered(answers, group, rank)
    if isinstance(mine, str):
        message = f"the ranks cannot agree on what each of them saves: {mine}"
        raise CheckpointMismatch(message)
    base, keys = mine
    tensors = tuple(key for key in keys if key[1] is not None)
    return _Plan(group, signature, tensors, tuple(key for key in keys if key[1] is None), contents, base)


def _local_plan(planner: DefaultSavePlanner, state: dict[str, Any], *, is_coordinator: bool) -> SavePlan | str:
    try:
        planner.set_up_planner(state, is_coordinator=is_coordinator)
        return planner.create_local_plan()
    except Exception as error:  # noqa: BLE001  (whatever it is, the others are waiting)
        return repr(error)


def _divided(planner: DefaultSavePlanner, plans: list[SavePlan | str]) -> tuple[list[_Answer], bytes | None]:
    """What each rank is told, and the metadata shard; or why not."""
    failed = [plan for plan in plans if isinstance(plan, str)]
    try:
        if failed:
            return [failed[0]] * len(plans), None
        divided, metadata = planner.create_global_plan([plan for plan in plans if not isinstance(plan, str)])
        keys = [tuple(key_of(item.index) for item in plan.items) for plan in divided]
        base = new_save_id()
        return [(base, of_rank) for of_rank in keys], contents_of(metadata, keys).to_json()
    except Exception as error:  # noqa: BLE001  (as above)
        return [repr(error)] * len(plans), None


_Answer = tuple[str, tuple[Key, ...]] | str


def _gathered(mine: SavePlan | str, group: dist.ProcessGroup | None, rank: int, world_size: int) -> list[SavePlan | str] | None:
    """All ranks' on rank 0, None elsewhere. Collective 2."""
    if group is None:
        return [mine]
    gathered: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(mine, gathered, dst=dist.get_global_rank(group, 0), group=group)
    return gathered


def _scattered(answers: list[_Answer], group: dist.ProcessGroup | None, rank: int) -> _Answer:
    """This rank's. Collective 3."""
    if group is None:
        return answers[0]
    mine: list[Any] = [None]
    given = answers if rank == 0 else None
    dist.scatter_object_list(mine, given, src=dist.get_global_rank(group, 0), group=group)
    answer: _Answer = mine[0]
    return answer


def _on_every_rank(fits: bool, group: dist.ProcessGroup | None) -> bool:
    """Collective 1."""
    if group is None:
        return fits
    told = torch.tensor([int(fits)], device=device_of(group))
    dist.all_reduce(told, dist.ReduceOp.MIN, group=group)
    return bool(told.item())


def _signature(flat: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for two states for which the same plan is right."""
    return tuple(_shape(name, value) if isinstance(value, Tensor) else name for name, value in flat.items())


def _shape(name: str, tensor: Tensor) -> tuple[Any, ...]:
    if isinstance(tensor, DTensor):
        return (name, tensor._local_tensor.shape, tensor.dtype, tensor.shape, tensor.placements, tensor.device_mesh)  # noqa: SLF001
    if isinstance(tensor, ShardedTensor):
        message = f"{name!r} is a ShardedTensor, of FSDP1: save it with dcp.save, or move to fully_shard"
        raise CheckpointMismatch(message)
    return (name, tensor.shape, tensor.dtype)


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001


def _layout(plan: _Plan, parts: list[Part]) -> Layout:
    """Only the sizes of the bytes may differ between two saves by one plan."""
    known = plan.layout
    first = len(plan.tensors)
    if known is None or [item.nbytes for item in known.items[first:]] != [part.nbytes for part in parts[first:]]:
        known = plan.layout = layout_of(parts)
    return known


def _saved(value: Any) -> bytes:
    """As DCP's default planner writes what is no tensor, and its load planner reads it."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Rank and world size."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)
