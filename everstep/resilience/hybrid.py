"""HSDP whose replicas come and go: FSDP shards inside a replica, and a hook averages each shard's gradients over the replicas.

The mesh has the shard dimension only. How many replicas there are is the size of a StableGroup, asked at each reduction; so a replica that has
gone, or one more, is a new generation like any other, and neither the mesh nor a parameter hears of it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from .own_groups import OwnGroups, StableGroup

REPLICATE_GROUP = "everstep-replicate"


def declare(groups: OwnGroups, shards: int) -> StableGroup:
    """Rank ``r`` is replica ``r // shards``; the group of shard ``k`` are the ranks ``k``, ``k + shards`` and so on."""

    def members(rank: int, world_size: int) -> range:
        return range(rank % shards, world_size, shards)

    return groups.declare(REPLICATE_GROUP, members)


def average_over_replicas(model: torch.nn.Module, replicas: StableGroup) -> None:
    """Has every FSDP module average its reduced gradients over the replicas. FSDP has divided by the number of shards already."""

    def hook(gradient: torch.Tensor) -> None:
        if replicas.size() > 1:
            dist.all_reduce(gradient, group=replicas)
            gradient.div_(replicas.size())

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(hook)
