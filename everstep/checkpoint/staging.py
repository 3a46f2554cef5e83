"""A state dictionary copied once, into the segment that it will be sealed in, before DCP has planned anything.

What the plan will give to this rank is known for a tensor that is sharded over all ranks, for a job of one rank, and for all others from the
save before. What is not known is copied beside the segment, once; what is known to be another rank's is not copied at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor, Shard

from everstep.checkpoint.layout import Layout
from everstep.checkpoint.leaves import has_tensors
from everstep.checkpoint.placing import Part, Whose, copy_all, layout_of, open_shard, views_over
from everstep.checkpoint.tiers import OpenShard, Tiers
from everstep.checkpoint.torch_parts import local_of, over
from everstep.errors import CheckpointMismatch

_HEADROOM = 1 << 20
_PER_ITEM = 512
_PER_OBJECT = 4096


@dataclass
class Staged:
    """``state`` is the dictionary with the copies in the tensors' places; ``places`` tells where in ``shard`` a copy lies, by its address."""

    shard: OpenShard
    layout: Layout
    state: dict[str, Any]
    places: dict[int, int]
    elsewhere: memoryview | None = None
    missing: set[int] = field(default_factory=set)

    def place(self, tensor: Tensor) -> int | None:
        """Where it lies in the shard; None if it does not."""
        return self.places.get(tensor.data_ptr()) if tensor.numel() else None

    def is_missing(self, tensor: Tensor) -> bool:
        """Whether it was not copied, because the save before gave it to another rank."""
        return tensor.data_ptr() in self.missing


@dataclass(frozen=True)
class Leaf:
    name: str
    tensor: Tensor


def leaves_of(state: Mapping[str, Any]) -> list[Leaf]:
    """Every tensor of the state, named as DCP flattens it. Raises CheckpointMismatch for a ShardedTensor, which has no copy of its own."""
    leaves: list[Leaf] = []
    _rebuilt(state, (), lambda name, tensor: leaves.append(Leaf(name, tensor)), lambda _: None)
    return leaves


def shapes_of(state: Mapping[str, Any]) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """What makes two states alike to the planner of a world that has not changed."""
    return tuple((leaf.name, local_of(leaf.tensor).shape, leaf.tensor.dtype) for leaf in leaves_of(state))


def stage(
    tiers: Tiers, whose: Whose, state: Mapping[str, Any], known: frozenset[str] | None, world_size: int
) -> Callable[[], Staged]:
    """Opens the shard now; what is returned copies, and may be called on another thread. ``known``: the names that this rank wrote last time.

    Raises SaveRefused, CheckpointMismatch.
    """
    leaves = leaves_of(state)
    objects = 0

    def counted(value: Any) -> Any:
        nonlocal objects
        objects += 1
        return copy.deepcopy(value)

    rest = _rebuilt(state, (), lambda _, tensor: tensor, counted)
    ours = [leaf for leaf in leaves if _is_ours(leaf, known, world_size) is True]
    doubtful = [leaf for leaf in leaves if _is_ours(leaf, known, world_size) is None]
    parts = [Part(leaf.name, (), local_of(leaf.tensor)) for leaf in ours]
    layout = layout_of(parts)
    doubtful_bytes = sum(part.nbytes for part in (Part(leaf.name, (), local_of(leaf.tensor)) for leaf in doubtful))
    room = layout.nbytes + doubtful_bytes + len(leaves) * _PER_ITEM + objects * _PER_OBJECT + _HEADROOM
    shard = open_shard(tiers, whose, room)

    def staged() -> Staged:
        try:
            return _staged(tiers, shard, layout, parts, ours, doubtful, rest)
        except BaseException:
            shard.abandon()
            raise

    return staged


def _staged(
    tiers: Tiers, shard: OpenShard, layout: Layout, parts: list[Part], ours: list[Leaf], doubtful: list[Leaf], rest: dict[str, Any]
) -> Staged:
    alike = tuple(
        (leaf.name, part.content.shape, part.content.dtype)
        for leaf, part in zip(ours, parts, strict=True)
        if isinstance(part.content, Tensor)
    )
    views = views_over(shard, parts, layout, ("staged", alike))
    beside = [Part(leaf.name, (), local_of(leaf.tensor)) for leaf in doubtful]
    laid = layout_of(beside)
    elsewhere = tiers.private(laid.nbytes) if laid.nbytes else None
    others = [
        over(elsewhere, item.start, part.content.shape, part.content.dtype)
        if elsewhere is not None
        else torch.empty_like(part.content)
        for part, item in zip(beside, laid.items, strict=True)
        if isinstance(part.content, Tensor)
    ]
    copy_all([*views, *others], [part.content for part in (*parts, *beside) if isinstance(part.content, Tensor)])
    copies = {leaf.name: view for leaf, view in zip((*ours, *doubtful), (*views, *others), strict=True)}
    missing: set[int] = set()

    def replaced(name: str, tensor: Tensor) -> Tensor:
        local = copies.get(name)
        if local is None:
            local = _nothing_like(local_of(tensor))
            missing.add(local.data_ptr())
        return _like(tensor, local)

    state = _rebuilt(rest, (), replaced, lambda value: value)
    places = {view.data_ptr(): item.start for view, item in zip(views, layout.items, strict=True) if view.numel()}
    return Staged(shard, layout, state, places, elsewhere, missing - {0})


def _is_ours(leaf: Leaf, known: frozenset[str] | None, world_size: int) -> bool | None:
    if world_size == 1:
        return True
    tensor = leaf.tensor
    if (
        isinstance(tensor, DTensor)
        and tensor.device_mesh.size() == world_size
        and all(type(one) is Shard for one in tensor.placements)
    ):
        return True
    return None if known is None else leaf.name in known


def _like(tensor: Tensor, local: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return local
    shape, stride = tensor.shape, tensor.stride()
    return DTensor.from_local(local, tensor.device_mesh, tensor.placements, run_check=False, shape=shape, stride=stride)


def _nothing_like(tensor: Tensor) -> Tensor:
    """Of its shape and type, for the planner, but of one element's memory."""
    return (
        torch.empty((), dtype=tensor.dtype).expand(tensor.shape)
        if tensor.numel()
        else torch.empty(tensor.shape, dtype=tensor.dtype)
    )


def _rebuilt(value: Any, path: tuple[str, ...], of_tensor: Callable[[str, Tensor], Any], of_other: Callable[[Any], Any]) -> Any:
    """The same dictionaries and lists with other leaves; lists without tensors, and tuples, are leaves, as they are to DCP."""
    if isinstance(value, ShardedTensor):
        message = f"{'.'.join(path)!r} is a ShardedTensor, of FSDP1: save it with dcp.save, or move to fully_shard, whose DTensors can be staged"
        raise CheckpointMismatch(message)
    if isinstance(value, Tensor):
        return of_tensor(".".join(path), value)
    if isinstance(value, Mapping):
        return {key: _rebuilt(inner, (*path, str(key)), of_tensor, of_other) for key, inner in value.items()}
    if isinstance(value, list) and has_tensors(value):
        return [_rebuilt(inner, (*path, str(number)), of_tensor, of_other) for number, inner in enumerate(value)]
    return of_other(value)
