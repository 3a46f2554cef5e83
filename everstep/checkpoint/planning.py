"""DCP's plans and metadata in our words, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from everstep.checkpoint.contents import Chunk, Contents, TensorContent
from everstep.checkpoint.layout import Key
from everstep.checkpoint.torch_parts import dtype_of, name_of
from everstep.errors import CheckpointMismatch


def key_of(index: MetadataIndex) -> Key:
    return (index.fqn, None if index.offset is None else tuple(index.offset))


def contents_of(metadata: Metadata, shards: Sequence[Iterable[Key]]) -> Contents:
    """What a step holds, from DCP's metadata and the keys of what each rank has written. Raises CheckpointMismatch if they do not fit."""
    holds = {key: shard for shard, keys in enumerate(shards) for key in keys}
    tensors: dict[str, TensorContent] = {}
    blobs: dict[str, int] = {}
    for name, told in metadata.state_dict_metadata.items():
        if isinstance(told, TensorStorageMetadata):
            chunks = tuple(
                Chunk(tuple(one.offsets), tuple(one.sizes), _holder(holds, (name, tuple(one.offsets)))) for one in told.chunks
            )
            tensors[name] = TensorContent(name_of(told.properties.dtype), tuple(told.size), chunks)
        else:
            blobs[name] = _holder(holds, (name, None))
    return Contents(len(shards), tensors, blobs, _paths(metadata.planner_data))


def metadata_of(contents: Contents) -> Metadata:
    """DCP's metadata of a step."""
    tensors = {
        name: TensorStorageMetadata(
            TensorProperties(dtype=dtype_of(one.dtype)),
            torch.Size(one.size),
            [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in one.chunks],
        )
        for name, one in contents.tensors.items()
    }
    blobs = {name: BytesStorageMetadata() for name in contents.blobs}
    return Metadata({**tensors, **blobs}, planner_data=dict(contents.paths) or None)


def _holder(holds: Mapping[Key, int], key: Key) -> int:
    shard = holds.get(key)
    if shard is None:
        message = f"no rank has written {key[0]!r} at {key[1]}, which the planner's metadata names"
        raise CheckpointMismatch(message)
    return shard


def _paths(planner_data: Any) -> dict[str, tuple[str | int, ...]]:
    """Where names came from, as DCP's own planners tell it. Raises CheckpointMismatch for a planner that tells something else."""
    if planner_data is None:
        return {}
    if isinstance(planner_data, Mapping) and all(isinstance(path, tuple) for path in planner_data.values()):
        return dict(planner_data)
    message = (
        f"the planner's data is a {type(planner_data).__name__}; only paths of names can be kept, as DefaultSavePlanner tells them"
    )
    raise CheckpointMismatch(message)
